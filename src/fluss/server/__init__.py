"""The server: `process` starts it, `server` listens, `session` and `dispatch` lead from requests to `handlers`."""
