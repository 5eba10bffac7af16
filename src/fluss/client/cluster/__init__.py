"""The cluster as a client knows it: settings, connections, metadata, leaders, coordinator; and trying again.

`cluster` holds all of it, `metadata` is what is known, `ask` questions servers, `retry` is how often and how long.
"""
