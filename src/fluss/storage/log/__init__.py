"""Logs of buckets: segments, indexes, writers, group commit, marks, recovery and retention."""
