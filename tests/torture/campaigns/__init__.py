"""One module per kind of campaign; each is imported and registers its campaigns."""
