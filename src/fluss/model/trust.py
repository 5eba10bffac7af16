"""Addresses of servers, files and catalogs, and which of them a reader goes to without being told by its own settings.

What a table, a server or a catalog says is data, never a choice of code, host, path or credential. A host is used
unasked if it is the server's own, or loopback where the server is; a path if the server is on this machine and the path
belongs to the user who runs the client; anything else if the client's own setting `lake.trusted` lists it. What users
set in their own lake settings is not checked here. docs/security.md says the same to readers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

from fluss.model.errors import ConnectError, ErrorCode, InvalidRequestError

if TYPE_CHECKING:
    from fluss.model.config import Config


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
        """The endpoint in a text, or None, such as for an empty file after a power loss."""
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
    if "://" in part:
        scheme, _, rest = part.partition("://")
        raise _bad_address(text, f"it is no {scheme}:// address; write {rest.rstrip('/')!r}")
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


# The rest of 127.0.0.0/8 may be somebody else's, such as a container's.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
LOCAL_SCHEMES: Final = ("", "file")
S3_SCHEMES: Final = ("s3", "s3a", "s3n")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432}
# Parsers of addresses differ in how they take these apart, and so in which host or file they find.
_ODD: Final = re.compile(r"[\x00-\x20\x7f#?%\\]")
_ODD_PATH: Final = re.compile(r"[\x00-\x1f\x7f#?\\]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SYSTEM_PATHS: Final = ("/dev", "/proc", "/sys")
# What follows the folder of an Iceberg table.
_FILE_OF_TABLE: Final = re.compile(r"/(metadata|data)(/.*)?$", re.DOTALL)
_WORDS: Final = re.compile(r"[^a-z0-9]+")
_CODE_WORDS: Final = frozenset({"impl", "class", "classname", "driver", "factory", "plugin", "jar", "jars"})
_PLACE_WORDS: Final = frozenset(
    {"uri", "url", "host", "hosts", "endpoint", "warehouse", "catalog", "location", "path", "proxy", "signer", "jdbc"}
)
_SECRET_WORDS: Final = frozenset(
    {"password", "secret", "token", "credential", "credentials", "auth", "oauth2", "arn", "profile", "keytab", "sigv4"}
)
_SECRET_PARTS: Final = ("access-key", "account-key", "secret-key", "api-key", "private-key")

_log = logging.getLogger("fluss.trust")
_warned: set[str] = set()


class UntrustedError(InvalidRequestError):
    """A server or a catalog names a host or a path that this client was not told to use."""


def names_code(key: str) -> bool:
    """Whether a property chooses what is run."""
    return not _CODE_WORDS.isdisjoint(_WORDS.split(key.lower()))


def names_more_than_data(key: str) -> bool:
    """Whether a property chooses code, a host, a path or a credential."""
    # Behind `column.` stands the name of a column.
    words = _WORDS.split(key.lower().partition(".column.")[0])
    every = _CODE_WORDS | _PLACE_WORDS | _SECRET_WORDS
    return not every.isdisjoint(words) or any(part in "-".join(words) for part in _SECRET_PARTS)


def warn_once(text: str) -> None:
    """Log a warning, once in this process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


@dataclass(frozen=True, slots=True)
class Trust:
    """What one client trusts. Plain values, so that it can be sent to tasks."""

    hosts: frozenset[str] = frozenset()
    """Of the servers that the user named"""
    is_local: bool = False
    """Whether all of them are on this machine"""
    directory: str | None = None
    """The data directory, where the user named a server by it"""
    listed: tuple[str, ...] = ()
    """The setting `lake.trusted`"""

    @classmethod
    def of(cls, config: Config) -> Self:
        """What a client with these settings trusts."""
        servers = config.bootstrap_servers.strip()
        listed = tuple(item.strip() for item in config.lake_trusted.split(",") if item.strip())
        if servers.startswith(FILE_SCHEME):
            return cls(LOOPBACK, True, str(directory_of(servers)), listed)
        if servers.startswith(MEMORY_SCHEME):
            return cls(LOOPBACK, True, None, listed)
        addresses = (item.strip().removeprefix("fluss://") for item in servers.split(",") if item.strip())
        hosts = frozenset(_plain_host(address.rpartition(":")[0]) for address in addresses)
        return cls(hosts, hosts <= LOOPBACK, None, listed)

    @property
    def places(self) -> tuple[str, ...]:
        """The paths and buckets of the setting."""
        return tuple(item for item in self.listed if item.startswith("/") or "://" in item)

    def allows_host(self, address: str) -> bool:
        """Whether the host of a URL may be dialled."""
        parts = split_address(address)
        if parts is None or parts.hostname is None:
            return False
        host = _plain_host(parts.hostname)
        if host in self.hosts or (self.is_local and host in LOOPBACK):
            return True
        return self.lists_host(parts)

    def lists_host(self, parts: SplitResult) -> bool:
        """Whether the setting has the host of an address, with its port or without one."""
        host, port = _plain_host(parts.hostname or ""), _port(parts)
        for item in self.listed:
            is_address = _scheme(item).partition("+")[0] in _DEFAULT_PORTS and "://" in item
            entry = split_address(item if is_address else f"//{item}")
            if entry is not None and _plain_host(entry.hostname or "") == host and _port(entry) in (None, port):
                return True
        return False

    def allows_path(self, location: str) -> bool:
        """Whether a path that the server names may be opened: listed, or below a folder of this user's."""
        path = _normal(location)
        if path is None or not local_path_of(location).startswith("/") or not is_local(location):
            return False
        if is_inside(location, self.places):
            return True
        if not self.is_local:
            return False
        return (self.directory is not None and is_inside(location, [self.directory])) or _is_own(location, path)

    def allows_bucket(self, location: str) -> bool:
        """Whether a place in an object store may be opened."""
        return not is_local(location) and not _ODD.search(location) and is_inside(location, self.places)

    def untrusted(self, who: str, wanted: Sequence[str]) -> UntrustedError:
        """The error for what is named and not listed, with the line that would list it."""
        line = ",".join(dict.fromkeys([*self.listed, *map(_entry, wanted)]))
        return UntrustedError(
            f"{who} names {' and '.join(wanted)}, which this client was not told to use. If you trust that, add to the "
            f'client\'s settings: lake.trusted = "{line}" ([client] of fluss.toml, Config, FLUSS_LAKE_TRUSTED or '
            "--lake-trusted).",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


def split_address(address: str) -> SplitResult | None:
    """The parts of a URL in which everybody finds the same host; None for others."""
    if _ODD.search(address):
        return None
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  # raises for what is no number
    except ValueError:
        return None
    return None if "@" in parts.netloc or "," in parts.netloc or not parts.hostname else parts


def is_inside(location: str, places: Iterable[str]) -> bool:
    """Whether a path or a place in an object store is below one of these, links followed."""
    found = _normal(location)
    if found is None:
        return False
    for place in places:
        root = _normal(place)
        if root is not None and f"{found}/".startswith(root.rstrip("/") + "/"):
            return True
    return False


def check_location(location: str, places: Sequence[str], listed: Sequence[str] = ()) -> None:
    """Raise for a file of a lake that lies outside of its places, or can not be read."""
    if not is_inside(location, places):
        raise Trust(listed=tuple(listed)).untrusted("The lake's catalog", [_FILE_OF_TABLE.sub("", location)])
    if is_local(location):
        check_kind(local_path_of(location))


def is_local(location: str) -> bool:
    """Whether a location is on this machine."""
    return _scheme(location) in LOCAL_SCHEMES


def check_kind(path: str) -> None:
    """Raise for what is there and is neither a file nor a folder: opening it could wait for ever, or do something."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # whoever opens it is told
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UntrustedError(f"{path} is a device, a pipe or a socket, not a file; it is not opened.")


def local_path_of(location: str) -> str:
    """The path that a location on this machine names."""
    return unquote(urlsplit(location).path) if _scheme(location) else location


def _scheme(location: str) -> str:
    found = _SCHEME.match(location)
    return found[1].lower() if found else ""


def _normal(location: str) -> str | None:
    """A location in the spelling in which it is compared; None for one that can't be."""
    scheme, rest = _scheme(location), location.partition("://")[2]
    if _CONTROL.search(location) or {".", ".."} & set(rest.split("/")):
        return None
    if scheme not in LOCAL_SCHEMES:
        return f"{'s3' if scheme in S3_SCHEMES else scheme}://{rest}" if rest else None
    if scheme and rest.partition("/")[0] not in ("", "localhost"):
        return None
    path = local_path_of(location)
    if ".." in path.split("/"):
        return None
    return os.path.realpath("/" + path.lstrip("/") if path.startswith("/") else path)


def _is_own(location: str, real: str) -> bool:
    """Whether a path, or the nearest folder above it that exists, belongs to the user who runs this."""
    odd = _ODD if _scheme(location) else _ODD_PATH
    if odd.search(location) or any(map(_is_of_system, (os.path.normpath(local_path_of(location)), real))):
        return False
    while True:
        try:
            found = os.stat(real)
        except FileNotFoundError:
            real = os.path.dirname(real)
            continue
        except OSError:
            return False
        is_folder = stat.S_ISDIR(found.st_mode)
        return found.st_uid == os.geteuid() and (is_folder or stat.S_ISREG(found.st_mode))


def _is_of_system(path: str) -> bool:
    return any(path == item or path.startswith(f"{item}/") for item in _SYSTEM_PATHS)


def _port(parts: SplitResult) -> int | None:
    return parts.port or _DEFAULT_PORTS.get(parts.scheme.partition("+")[0])


def _plain_host(host: str) -> str:
    return host.strip("[]").lower().rstrip(".")


def _entry(wanted: str) -> str:
    """How the setting lists an address or a place."""
    if is_local(wanted):
        return local_path_of(wanted)
    is_address = _scheme(wanted).partition("+")[0] in _DEFAULT_PORTS
    return wanted.partition("://")[2].partition("/")[0].rpartition("@")[2] if is_address else wanted
