"""Crash, power loss, failing system calls, flipped bits, files cut under open handles."""
