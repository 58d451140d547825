"""Tests of groups: members that share a queue."""
