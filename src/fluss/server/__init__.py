"""The server: `process` starts it, `server` listens, `net` leads from connections to `handlers`.

Requests are executed in `net/session.py`, by the table in `net/routes.py`. `read` and `tables` are what handlers share.
`command` is `fluss server` with click, `embedded` the process that clients start.
"""
