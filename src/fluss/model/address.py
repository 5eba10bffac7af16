"""Server addresses as people write them."""

from __future__ import annotations

from typing import NamedTuple

from fluss.model.errors import ErrorCode, InvalidRequestError

PORT_MAX = 65535
BOOTSTRAP_COUNT_MAX = 100


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[Address]:
    """The addresses of a comma-separated list of host:port or fluss://host:port."""
    parts = [part.strip().removeprefix("fluss://") for part in text.split(",") if part.strip()]
    if not parts:
        raise _bad(text, "it names no server")
    if len(parts) > BOOTSTRAP_COUNT_MAX:
        raise _bad(text, f"it names more than {BOOTSTRAP_COUNT_MAX} servers")
    return [_parse(part, text) for part in parts]


def _parse(part: str, text: str) -> Address:
    host, separator, port = part.rpartition(":")
    if not separator or not host:
        raise _bad(text, f"{part!r} is not of the form host:port")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
        raise _bad(text, f"{port!r} is not a port from 1 to {PORT_MAX}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _bad(text: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Bad bootstrap.servers {text[:200]!r}: {problem}. Example: '127.0.0.1:9123'.",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )
