"""Batches as they travel and are stored: log batches, kv batches, statistics.

`log_batch` first: `statistics` are a part of it, and a server makes one of a `kv_batch`.
"""
