"""Lake and log read as one: `plan` says what is read, `rows` reads it, for Python, for DuckDB and for Spark's tasks.

`reader` is what a scan hands its rows over with, `duck` has DuckDB read what it can, and `sql` runs statements.
"""
