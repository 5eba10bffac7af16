from __future__ import annotations

from fluss.cli.entry import run

if __name__ == "__main__":
    run()
