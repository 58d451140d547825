"""Events that every service of the package must survive, tested over one list of services."""
