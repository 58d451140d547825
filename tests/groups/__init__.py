"""Groups: members that share a queue."""
