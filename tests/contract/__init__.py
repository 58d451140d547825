"""What any queue has to do, whoever wrote it and in whatever format."""
