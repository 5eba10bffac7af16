"""Staged writes: kept aside until a commit names them, then stored once."""
