"""Primary-key tables: puts, reads and scans of buckets, stores in RocksDB, snapshots, recovery."""
