"""Reading a log, in the order of the way: scanner, poll session, prefetch, fetcher, decoding; filters, remote logs.

`scanner` makes a scan of a log, and `table_read` reads whole tables; `cursor` is how far a bucket has been read,
`batch_reader` makes Arrow batches in the table's newest schema, and `own_loop_fetch` fetches where somebody waits.
"""
