"""Pure Python reading and writing of the queue format, independent of the engine."""
