"""Connections and their requests: frames in, logins, routes, turns, answers out, and what clients may cost."""
