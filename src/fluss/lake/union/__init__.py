"""Lake and log read as one: `plan` says what is read, `reader` reads it, for Python, for DuckDB and for Spark.

`sql` runs statements over it, and over the changes that `virtual` makes tables of.
"""
