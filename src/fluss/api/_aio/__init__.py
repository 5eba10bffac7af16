"""Classes that talk to a server, awaited; the source of those that block.

A connection gives tables and the admin, a table gives scans, writers and lookups: read `connection`, `table`, `scan`
in this order. Whatever is changed here is changed in `_sync` by `make sync`.
"""
