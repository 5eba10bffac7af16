"""Connections: one, a pool of them, those of callers' own loops, logins, and how an embedded server is found.

`connection` is the one that all requests take, `login` its beginning, `pool` where connections come from.
"""
