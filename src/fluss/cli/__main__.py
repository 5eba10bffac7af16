from __future__ import annotations

from fluss.cli.main import run

if __name__ == "__main__":
    run()
