"""What tests use and are not: programs that they start, waiting, the judge of deliveries."""
