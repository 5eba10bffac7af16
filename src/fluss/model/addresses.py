"""Addresses of servers: as people write them, and as the endpoint file of an embedded server has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from fluss.model.errors import ConnectError, ErrorCode, InvalidRequestError

FILE_SCHEME: Final = "file:"
MEMORY_SCHEME: Final = "memory:"
ENDPOINT_NAME: Final = "server.endpoint"
ENDPOINT_VERSION: Final = 1
EMBEDDED_LOCK_NAME: Final = "server.embedded.lock"
LOG_NAME: Final = "server.log"
EMBEDDED_USER: Final = "embedded"
# Exit status of an embedded server that found another one on its directory: nothing is wrong, that one is to be used.
EXIT_TAKEN: Final = 3
_PID_MAX: Final = 2**31 - 1
_PORT_MAX: Final = 65_535


class Endpoint(NamedTuple):
    """An embedded server; the secret is new at each start, so a port that others took over is noticed."""

    pid: int
    port: int
    secret: str

    def to_bytes(self) -> bytes:
        return json.dumps({"version": ENDPOINT_VERSION, **self._asdict()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Endpoint | None:
        """None for what is no endpoint, such as an empty file after a power loss."""
        try:
            content = json.loads(data)
            version = content.pop("version")
            if version != ENDPOINT_VERSION:
                raise ConnectError(
                    f"The embedded server was started by another version of flussbett (endpoint version {version}, not "
                    f"{ENDPOINT_VERSION}); use the same version, or end the processes that use the directory."
                )
            endpoint = cls(int(content["pid"]), int(content["port"]), str(content["secret"]))
            return endpoint if 0 < endpoint.pid <= _PID_MAX and 0 < endpoint.port <= _PORT_MAX else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def directory_of(address: str) -> Path:
    """The directory of `file:///absolute/path`, `file:relative/path` or `file:~/path`, percent signs decoded."""
    path = address.removeprefix(FILE_SCHEME)
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise _bad(address, f"{host!r} stands where a host name would")
        path = slash + rest
    path = unquote(path)
    if not path or "\0" in path:
        raise _bad(address, "it names no directory")
    return Path(path).expanduser().absolute()


def _bad(address: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Bad address {address[:200]!r}: {problem}. Examples: 'file:///data/fluss', 'file:relative/directory'.",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )


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
        raise _bad_address(text, "it names no server")
    if len(parts) > BOOTSTRAP_COUNT_MAX:
        raise _bad_address(text, f"it names more than {BOOTSTRAP_COUNT_MAX} servers")
    return [_parse(part, text) for part in parts]


def _parse(part: str, text: str) -> Address:
    host, separator, port = part.rpartition(":")
    if not separator or not host:
        raise _bad_address(text, f"{part!r} is not of the form host:port")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
        raise _bad_address(text, f"{port!r} is not a port from 1 to {PORT_MAX}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _bad_address(text: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Bad bootstrap.servers {text[:200]!r}: {problem}. Example: '127.0.0.1:9123'.",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )
