"""Batches as they travel and are stored: log batches, kv batches, statistics, checksums.

`log_batch` first: `checksum`, `statistics` and `row_log` are parts of it, and a server makes one of a `kv_batch`.
"""
