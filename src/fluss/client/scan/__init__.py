"""Reading a log: scanner, poll session, prefetch, fetcher, cursor, decoding, filters, remote segments."""
