"""The cluster as a client knows it: settings, connections, metadata, leaders, coordinator; and trying again.

`cluster` holds all of it and questions servers, `metadata` is what is known, `retry` is how often and how long.
"""
