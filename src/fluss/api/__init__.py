"""Classes of the three facades: thin shells over `fluss.client`.

`_aio` has those that talk to a server as `fluss.aio` offers them, and is written by hand. `_sync` has those of
`fluss.sync` and is made of `_aio` by tools/unasync.py. What the two do not share word for word is in `awaiting` and
`blocking`. `mixed` is the facade `fluss`: its scanners block, all else is of `_aio`. Begin with `connect`, then
`_aio/connection`, `_aio/table`, `_aio/writers`.
"""
