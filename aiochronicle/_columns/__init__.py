"""Messages as Arrow columns, numpy arrays and Parquet files."""
