"""Runs the server command with segments of FLUSS_TEST_SEGMENT_BYTES, so that short loads roll them."""

from __future__ import annotations

import functools
import os

import fluss.server.server as server_module
from fluss.server.command import server
from fluss.storage.store import StorageOptions

SEGMENT_BYTES_VARIABLE = "FLUSS_TEST_SEGMENT_BYTES"


def main() -> None:
    size_bytes = int(os.environ[SEGMENT_BYTES_VARIABLE])
    small = functools.partial(StorageOptions, segment_size_bytes=size_bytes)
    vars(server_module)["StorageOptions"] = small
    server()


if __name__ == "__main__":
    main()
