"""Durable storage of the server: catalog, logs, key-value stores, recovery. Nothing here knows of sockets or messages.

`store` is one data directory, opened; `files` is the only door to the disk. `log` leads and `kv` follows it.
"""
