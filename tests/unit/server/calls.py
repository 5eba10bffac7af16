"""Calls that tests of several requests make."""

from __future__ import annotations

import urllib.request
from typing import Any

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import (
    TIMEOUT_S,
    RunningServer,
    Wire,
    path,
)

SET, RESET, APPEND = 0, 1, 2


def alter(wire: Wire, name: str = "t", ignore: bool = False, **changes: Any) -> None:
    request = pb.AlterTableRequest(table_path=path(name), ignore_if_not_exists=ignore, **changes)
    wire.call(api_keys.ALTER_TABLE, request)


def config(key: str, value: str | None = None, operation: int = SET) -> pb.PbAlterConfig:
    return pb.PbAlterConfig(config_key=key, config_value=value, op_type=operation)


PASSWORD = "correct horse battery"


def login(wire: Wire, user: str = "ada", password: str = PASSWORD, mechanism: str = "PLAIN") -> pb.AuthenticateResponse:
    return authenticate(wire, b"\0" + user.encode() + b"\0" + password.encode(), mechanism)


def authenticate(wire: Wire, token: bytes, mechanism: str = "PLAIN") -> pb.AuthenticateResponse:
    return wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol=mechanism, token=token))


def scrape(server: RunningServer) -> dict[str, float]:
    """Sample name with labels to value."""
    port = server.server.metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = response.read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
