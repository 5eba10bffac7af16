"""Findings of `fluss doctor` about the installation, and on a connection: who answers, how fast, which tables."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fluss.cli.connecting import connected
from fluss.cli.failures import EXTRAS
from fluss.doors import clock
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import ErrorCode, FlussError

if TYPE_CHECKING:
    from fluss.api.operations import ClusterOperations
    from fluss.model.config import Config
    from fluss.model.paths import TablePath
    from fluss.sync import FlussAdmin, FlussConnection


OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    status: str
    check: str  # what was looked at
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(OK, check, text)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(WARNING, check, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    return Finding(PROBLEM, check, text, advice)


_LIBRARIES: Final = ("pyarrow", "numpy", "protobuf", "rocksdict", "crc32c", "uvloop", "pyspark", "pyiceberg", "duckdb")
_RIVAL: Final = "pyfluss"


def environment_findings() -> Iterator[Finding]:
    """All of them; nothing here is a problem by itself."""
    yield ok("versions", ", ".join(_versions()))
    yield _extras()
    yield _kernels()
    yield _rival()


def _versions() -> Iterator[str]:
    yield f"flussbett {_version('flussbett')}"
    yield f"Python {platform.python_version()}"
    for name in _LIBRARIES:
        if (version := _version(name)) is not None:
            yield f"{name} {version}"


def _extras() -> Finding:
    """Which extras are there, and which packages the others lack."""
    missing: dict[str, list[str]] = {extra: [] for extra in EXTRAS.values()}
    for package, extra in EXTRAS.items():
        if _version(package) is None:
            missing[extra].append(package)
    texts = [f"{extra} (no {', '.join(lacks)})" if lacks else extra for extra, lacks in missing.items()]
    return ok("extras", f"{', '.join(texts)}; 'pip install flussbett[NAME]' adds one")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _kernels() -> Finding:
    from fluss.formats import kernel

    if kernel.COMPILED:
        return ok("kernels", "compiled")
    return warning(
        "kernels",
        "plain Python, which is many times slower",
        "Install a C compiler and install flussbett anew; unset FLUSS_PURE if it is set.",
    )


def _rival() -> Finding:
    import fluss

    if _version(_RIVAL) is None:
        return ok("import name", f"'fluss' is {Path(fluss.__file__ or '').parent}")
    return warning(
        "import name",
        f"{_RIVAL} {_version(_RIVAL)} is installed too, and both own the import name 'fluss'",
        f"Keep them in environments of their own: 'pip uninstall {_RIVAL}', then install flussbett anew.",
    )


PINGS: Final = 5
ROUND_TRIP_MS_MAX: Final = 50.0
CLOCK_MS_MAX: Final = 2_000
_CLOCK_MS_FAR: Final = 1 << 40
TABLES_MAX: Final = 1_000
_NAMED_MAX: Final = 5


def connection_findings(settings: Config) -> Iterator[Finding]:
    """All of them, in the order in which they are found."""
    address = settings.bootstrap_servers
    try:
        with connected(settings) as connection:
            yield ok("address", f"{address} answers")
            yield from _of(connection)
    except FlussError as error:
        yield problem("address", error.message, "Check the address and the login, and that a server runs there.")


def _of(connection: FlussConnection) -> Iterator[Finding]:
    from fluss.api.operations import ClusterOperations

    admin, operations = connection.get_admin(), ClusterOperations(connection)
    nodes = admin.get_server_nodes()
    yield ok("nodes", ", ".join(f"{node.uid} at {node.address}" for node in nodes))
    yield _server_kind(operations)
    yield _round_trip(admin)
    tables = _tables(admin)
    yield from _leaders(operations, tables)
    clock = _clock(admin, tables)
    if clock is not None:
        yield clock


def _server_kind(operations: ClusterOperations) -> Finding:
    from fluss.client.net.connection import client_version

    found = operations.server_kind()
    kind = "a Flussbett server" if found.is_flussbett else "an Apache Fluss cluster"
    text = f"{kind}, {found.request_kinds} kinds of requests; this client is flussbett {client_version()}"
    lacks = f"{text}; it lacks {', '.join(found.missing)}" if found.missing else text
    if found.is_flussbett and found.missing:
        return warning("server", lacks, "Upgrade the server to the client's version.")
    return ok("server", lacks)


def _round_trip(admin: FlussAdmin) -> Finding:
    times_ms = []
    for _ in range(PINGS):
        began_s = clock.monotonic()
        admin.list_databases()
        times_ms.append((clock.monotonic() - began_s) * 1_000)
    median_ms = statistics.median(times_ms)
    if median_ms <= ROUND_TRIP_MS_MAX:
        return ok("round trip", f"{median_ms:.1f} ms")
    advice = "Run close to the server, or write and look up many rows at a time."
    return warning("round trip", f"{median_ms:.1f} ms, which is slow", advice)


def _tables(admin: FlussAdmin) -> list[TablePath]:
    from fluss.model.paths import TablePath

    found = (TablePath(database, name) for database in admin.list_databases() for name in admin.list_tables(database))
    return [path for path, _ in zip(found, range(TABLES_MAX), strict=False)]


def _leaders(operations: ClusterOperations, tables: list[TablePath]) -> Iterator[Finding]:
    without = [path for path in tables if operations.lacks_leaders(path)]
    if without:
        named = ", ".join(map(str, without[:_NAMED_MAX]))
        text = f"{len(without)} of {len(tables)} tables have buckets without a leader: {named}"
        yield problem("tables", text, "See that all tablet servers of the cluster are up.")
    else:
        yield ok("tables", f"{len(tables)}, all with leaders")


def _clock(admin: FlussAdmin, tables: list[TablePath]) -> Finding | None:
    """Compare the clocks. No request asks for the time, but a server refuses times that lie in its future."""
    for path in tables:
        try:
            if not admin.get_table_info(path).is_partitioned():
                ahead_ms = _clock_ahead_ms(lambda at_ms, path=path: _is_past(admin, path, at_ms))  # type: ignore[misc]
                break
        except FlussError:
            continue
    else:
        return None
    if abs(ahead_ms) <= CLOCK_MS_MAX:
        return ok("clock", f"within {CLOCK_MS_MAX // 1_000} s of this machine's")
    text = f"the server's clock is {abs(ahead_ms) / 1_000:.0f} s {'ahead of' if ahead_ms > 0 else 'behind'} this one's"
    return warning("clock", text, "Let both follow a time server: scans by time and retention go by the server's.")


def _is_past(admin: FlussAdmin, path: TablePath, at_ms: int) -> bool:
    from fluss.model.offsets import OffsetSpec

    try:
        admin.list_offsets(path, [0], OffsetSpec.timestamp(at_ms))
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        return False
    return True


def _clock_ahead_ms(is_past: Callable[[int], bool]) -> int:
    """How much later it is there than here; 0 if that is not much."""

    def reached(ahead_ms: int) -> bool:
        return is_past(max(0, wall_clock_ms() + ahead_ms))

    if reached(-CLOCK_MS_MAX) and not reached(CLOCK_MS_MAX):
        return 0
    low, high = -_CLOCK_MS_FAR, _CLOCK_MS_FAR
    while high - low > CLOCK_MS_MAX // 4:
        middle = (low + high) // 2
        low, high = (middle, high) if reached(middle) else (low, middle)
    return low
