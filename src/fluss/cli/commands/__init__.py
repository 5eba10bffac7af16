"""The commands: a module for each, or for a few that belong together.

Those for everyday come first in `fluss.cli.main`: `database` and `table`, then `write`, `scan`, `lookup`.
"""
