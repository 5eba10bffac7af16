"""Values without I/O: what a table, a bucket, an offset or an error is."""
