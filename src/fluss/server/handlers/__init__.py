"""Handlers of requests: a module for each group of requests, called from the table in `fluss.server.net.routes`.

`logs` is the shortest way to see one; `writes` has what all that write share.
"""
