"""Shared by all other sub-packages: arguments, texts, threads, the binding of the engine."""
