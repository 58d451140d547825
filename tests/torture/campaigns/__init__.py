"""One module per campaign; every one of them is imported, and registers itself."""
