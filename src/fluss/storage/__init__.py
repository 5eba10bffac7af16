"""Durable storage of the server: catalog, logs, recovery. Nothing here knows of sockets or messages."""
