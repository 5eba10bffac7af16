"""Batches as they travel and are stored: log batches, kv batches, statistics, checksums."""
