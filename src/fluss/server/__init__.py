"""The server: `process` starts it, `server` listens, `session` and `routes` lead from requests to `handlers`."""
