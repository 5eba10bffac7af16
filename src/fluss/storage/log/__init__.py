"""Logs of buckets: segments, indexes, writers, group commit, marks, recovery and retention.

In the order of an append: `log`, `writer_state`, `segment`, `index`, `group_commit`, `marks`. `recovery` opens what is
there, `retention` removes it.
"""
