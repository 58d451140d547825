"""Helpers of the tests: programs that they start, waiting, and the check of deliveries."""
