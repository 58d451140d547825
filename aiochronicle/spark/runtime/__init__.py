"""The surroundings of Spark: Java, Python workers, a session, progress and errors."""
