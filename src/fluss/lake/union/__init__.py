"""Lake and log read as one: `plan` says what is read, `reader` reads it; `duck` and `sql` have DuckDB do that."""
