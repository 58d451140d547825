"""Frames into queues, exactly once."""
