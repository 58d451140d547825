"""Typed payloads: which type a message has, and how to decode it."""
