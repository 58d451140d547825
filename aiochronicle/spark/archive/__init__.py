"""The archive of Parquet files: its manifest, its verification, and its position for retention."""
