"""Backups of a data directory, and directories made of them."""
