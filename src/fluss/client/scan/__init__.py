"""Reading a log, in the order of the way: scanner, prefetch, fetcher, batches; filters, remote logs.

`scanner` makes a scan of a log, and `table_read` reads whole tables; `batches` are fetched ones with the cursor of
their bucket, and Arrow batches made of them in the table's newest schema.
"""
