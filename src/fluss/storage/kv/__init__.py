"""Primary-key tables: puts, reads and scans of buckets, stores in RocksDB, snapshots, recovery.

In the order of a put: `engine`, `bucket`, `put`, `table`, `store`, `rocks`. `pool` opens stores and `recovery` makes
them good; `snapshots` are what a store can be rebuilt from.
"""
