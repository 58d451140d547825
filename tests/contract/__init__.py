"""The contract of a queue, for every implementation and format."""
