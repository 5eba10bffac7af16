from __future__ import annotations

import sys

from fluss.server.process import serve_if_plain

if __name__ == "__main__" and not serve_if_plain(sys.argv[1:]):
    from fluss.server.command import server

    server(prog_name="fluss server")
