"""User-facing classes of the three facades: thin shells over `fluss.client`.

A class that all three share lives in the module without suffix; `_aio` and `_sync` hold what differs there.
"""
