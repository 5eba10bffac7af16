"""Handlers of requests: a module for each group of requests, called from the table in `fluss.server.net.routes`."""
