"""The client's core: coroutines on one I/O loop per process, under the thin shells of `fluss.api`.

`client` is one connected client, and `cluster` what all its parts share. Rows are written through `write`, read through
`scan`, `current` and `lookup`; `net` carries the requests.
"""
