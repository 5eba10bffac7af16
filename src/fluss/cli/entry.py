"""The program `fluss`, as pip installs it."""

# Small on purpose: it is all that a server's process loads of the command line.

from __future__ import annotations

import sys


def run() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["server"]:
        # A server keeps what its process has loaded as long as it runs: it starts without the other commands.
        from fluss.server.process import serve_if_plain

        if serve_if_plain(sys.argv[2:]):
            return
    from fluss.cli import connecting
    from fluss.cli.main import main

    connecting.without_pandas = True
    main(prog_name="fluss")
