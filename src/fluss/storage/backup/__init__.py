"""Backups of a data directory, and directories made of them.

`backup` makes and uses one, and `files` is what it knows of its files.
"""
