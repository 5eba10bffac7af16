"""Staged writes: kept aside until a commit names them, then stored once.

`staging` takes requests, `commit` keeps them and appends what was named.
"""
