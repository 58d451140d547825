"""Pure Python reader and writer of the queue format, independent of the engine."""
