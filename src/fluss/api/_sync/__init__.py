"""Classes that talk to a server, blocking: made of `_aio` by tools/unasync.py, which `make sync` runs.

Nothing but this file is edited here. `_aio` says in which order to read.
"""
