"""Used by all other parts: arguments, texts, threads, the binding of the engine."""
