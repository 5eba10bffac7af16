"""Staged writes: kept aside until a commit names them, then stored once.

`staging` takes requests, `files` keeps them, `commit` appends what was named.
"""
