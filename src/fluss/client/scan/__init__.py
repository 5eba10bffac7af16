"""Reading a log, in the order of the way: scanner, poll session, prefetch, fetcher, decoding; filters, remote logs."""
