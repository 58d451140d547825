"""One queue: writers, readers, their merge, and what is asked about a queue."""
