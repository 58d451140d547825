"""Tests of the Spark integration against a real Spark."""
