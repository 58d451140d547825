"""What every service of the package must survive, through one list of services."""
