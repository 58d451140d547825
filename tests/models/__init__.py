"""Promela models of the engine's protocols, and how they are checked."""
