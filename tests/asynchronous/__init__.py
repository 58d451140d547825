"""Tests of reading and writing in event loops."""
