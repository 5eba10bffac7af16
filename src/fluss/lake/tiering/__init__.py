"""Tiering: what is new in logs is moved to the lake.

`service` has many tables tiered, `round` one of them once; `task` says what there is to do, does it and runs it;
`pending_commit` makes it visible and tells the server.
"""
