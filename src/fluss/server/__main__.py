from __future__ import annotations

from fluss.server.command import server

if __name__ == "__main__":
    server(prog_name="fluss server")
