"""Connections: one, a pool of them, those of callers' own loops, and how an embedded server is found.

`connection` is the one that all requests take, its login and its pool; `own_loop` is for callers with a loop.
"""
