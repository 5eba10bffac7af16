"""Backups of a data directory, and directories made of them.

`backup` makes one, `restore` uses one, and `files` is what both know of its files.
"""
