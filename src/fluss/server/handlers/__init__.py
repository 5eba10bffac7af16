"""Handlers of requests: a module for each group of requests, called from the table in `fluss.server.net.routes`.

`produce` and `fetch` are the shortest way to see one; `writes` is what all that write share.
"""
