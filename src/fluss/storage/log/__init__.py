"""Logs of buckets: segments, indexes, writers, group commit, marks, recovery and retention.

In the order of an append: `log`, `writers`, `segments`, `segment`, `index`, `group_commit`, `marks`. `recovery` opens
what is there, with `walk`; `retention` removes it.
"""
