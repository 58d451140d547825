"""Payloads as objects: which type a message has, and what decodes it."""
