"""Connections: one, a pool of them, those of callers' own loops, logins, and how an embedded server is found."""
