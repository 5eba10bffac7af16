"""The wire: `frames`, `api_keys`, messages, and in `writes`, `fetches` and `lookups` both halves of those with rows.

Nothing here opens a socket.
"""
