"""Queues as frames: what is read, by which task, in which columns."""
