"""Settings of a server: defaults, then fluss.toml, then command-line flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from fluss.model.clock import NO_SETTLING, SETTLE_MS
from fluss.model.config import resolved
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.tables.options import DATALAKE_FORMATS, ICEBERG, PROPERTY_LENGTH_MAX, duration_ms
from fluss.model.trust import Address
from fluss.server.net.limits import Limits
from fluss.storage.catalog.catalog import BUCKETS_MAX, PARTITIONS_PER_TABLE_MAX
from fluss.storage.directory import SCRUB_BYTES_PER_SECOND, SCRUB_INTERVAL_MS, SCRUB_OFF
from fluss.storage.kv.pool import OPEN_STORES_MAX
from fluss.storage.kv.snapshots import INTERVAL_MS as SNAPSHOT_INTERVAL_MS
from fluss.storage.kv.store import MEMORY_BYTES, MEMORY_BYTES_MIN
from fluss.storage.log.log import SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES_MAX
from fluss.storage.log.retention import INTERVAL_MS, SIZE_KEY, UNLIMITED
from fluss.storage.staging.staging import BYTES_MAX, EXPIRE_MS

DURABILITIES: Final = ("fsync", "os")
PORT_DEFAULT: Final = 9123
PORT_MAX: Final = 65_535
_LIMITS: Final = "limits."
_ICEBERG: Final = "datalake.iceberg."
_CLIENT: Final = "client."  # what commands connect with; not the server's business
ICEBERG_OPTIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is started with."""

    data_dir: Path = Path("./fluss-data")
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT  # 0: any free one
    advertise: Address | None = None  # None: the address at which a client reached us
    durability: str = "fsync"
    default_bucket_number: int = 1
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    max_partition_num: int = PARTITIONS_PER_TABLE_MAX  # of one table
    max_bucket_num: int = BUCKETS_MAX  # of all tables together
    datalake_format: str | None = None  # stamped on new tables; None: iceberg on those that are tiered
    datalake_iceberg: Mapping[str, str] = field(default_factory=dict)  # what readers need to know of the catalog
    retention_size_bytes: int = UNLIMITED  # per bucket; 0: everything is kept that is not too old
    retention_interval_ms: int = INTERVAL_MS
    retention_default_ttl: str = "0 s"  # table.log.ttl of new log tables that name none; 0: they keep their rows
    clock_settle_ms: int = SETTLE_MS  # until then, after a start or a jump, nothing goes by its age; 0: at once
    kv_memory_bytes: int = MEMORY_BYTES  # of all stores of primary-key tables
    kv_open_stores_max: int = OPEN_STORES_MAX
    kv_snapshot_interval_ms: int = SNAPSHOT_INTERVAL_MS  # of buckets that changed
    staging_expire_ms: int = EXPIRE_MS  # then staged writes that nobody committed go
    staging_bytes_max: int = BYTES_MAX  # of all staged writes
    scrub_bytes_per_second: int = SCRUB_BYTES_PER_SECOND  # 0: stored files are not read to look for damage
    scrub_interval_ms: int = SCRUB_INTERVAL_MS  # from the begin of a pass to that of the next, at least
    disk_free_bytes_min: int | None = None  # None: by the size of segments
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no metrics; 0: any free one
    sasl_users: Path | None = None  # a users file; None: nobody needs to log in
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for key, port in (("port", self.port), ("metrics-port", self.metrics_port or 0)):
            if not 0 <= port <= PORT_MAX:
                raise _bad(f"{key} must be from 0 to {PORT_MAX}, not {port}")
        if duration_ms(self.retention_default_ttl) is None or not self.retention_default_ttl[-1:].isalpha():
            raise _bad(f"retention.default-ttl must be a duration like '7 d', not {self.retention_default_ttl!r}")
        if self.durability not in DURABILITIES:
            raise _bad(f"durability must be one of {', '.join(DURABILITIES)}, not {self.durability!r}")
        buckets_max = self.limits.buckets_per_table_max
        if not 1 <= self.default_bucket_number <= buckets_max:
            raise _bad(
                f"default.bucket.number must be from 1 to {buckets_max} (limits.buckets_per_table_max), "
                f"not {self.default_bucket_number}"
            )
        if not 1 <= self.segment_size_bytes <= SEGMENT_SIZE_BYTES_MAX:
            raise _bad(f"log.segment.file-size must be from 1 to {SEGMENT_SIZE_BYTES_MAX} bytes")
        if self.datalake_format is not None and self.datalake_format.upper() not in DATALAKE_FORMATS:
            raise _bad(f"datalake.format must be one of {', '.join(DATALAKE_FORMATS)}, not {self.datalake_format!r}")
        _check_iceberg(self.datalake_iceberg, self.datalake_format)
        if self.retention_size_bytes < 0:
            raise _bad(f"{SIZE_KEY} must be a number of bytes, or 0 to keep everything")
        if self.disk_free_bytes_min is not None and self.disk_free_bytes_min < 0:
            raise _bad("disk.free-bytes-min must be a number of bytes, or 0 to let the disk fill up")
        for key, number, number_min in (
            ("max.partition.num", self.max_partition_num, 1),
            ("max.bucket.num", self.max_bucket_num, 1),
            ("log.retention.check-interval-ms", self.retention_interval_ms, 1),
            ("clock.settle-ms", self.clock_settle_ms, NO_SETTLING),
            ("kv.snapshot.interval-ms", self.kv_snapshot_interval_ms, 1),
            ("kv.memory-bytes", self.kv_memory_bytes, MEMORY_BYTES_MIN),
            ("kv.open-stores-max", self.kv_open_stores_max, 1),
            ("staging.expire-ms", self.staging_expire_ms, 1),
            ("staging.bytes-max", self.staging_bytes_max, 1),
            ("scrub.bytes-per-second", self.scrub_bytes_per_second, SCRUB_OFF),
            ("scrub.interval-ms", self.scrub_interval_ms, 1),
        ):
            if number < number_min:
                raise _bad(f"{key} must be at least {number_min}, not {number}")


# Key in fluss.toml, type of its value, field of ServerConfig.
_KEYS: Final[dict[str, tuple[type, str]]] = {
    "data-dir": (str, "data_dir"),
    "host": (str, "host"),
    "port": (int, "port"),
    "advertise": (str, "advertise"),
    "durability": (str, "durability"),
    "default.bucket.number": (int, "default_bucket_number"),
    "log.segment.file-size": (int, "segment_size_bytes"),
    "max.partition.num": (int, "max_partition_num"),
    "max.bucket.num": (int, "max_bucket_num"),
    "datalake.format": (str, "datalake_format"),
    SIZE_KEY: (int, "retention_size_bytes"),
    "retention.default-ttl": (str, "retention_default_ttl"),
    "log.retention.check-interval-ms": (int, "retention_interval_ms"),
    "clock.settle-ms": (int, "clock_settle_ms"),
    "kv.memory-bytes": (int, "kv_memory_bytes"),
    "kv.open-stores-max": (int, "kv_open_stores_max"),
    "kv.snapshot.interval-ms": (int, "kv_snapshot_interval_ms"),
    "staging.expire-ms": (int, "staging_expire_ms"),
    "staging.bytes-max": (int, "staging_bytes_max"),
    "scrub.bytes-per-second": (int, "scrub_bytes_per_second"),
    "scrub.interval-ms": (int, "scrub_interval_ms"),
    "disk.free-bytes-min": (int, "disk_free_bytes_min"),
    "metrics-host": (str, "metrics_host"),
    "metrics-port": (int, "metrics_port"),
    "sasl-users": (str, "sasl_users"),
}


CHANGEABLE: Final = ("default.bucket.number", "datalake.format", SIZE_KEY)
"""Keys that may be changed while a server runs"""


def with_settings(config: ServerConfig, settings: Mapping[str, str]) -> ServerConfig:
    """Other settings with these of `CHANGEABLE`; raises for a value that is not right."""
    values: dict[str, Any] = {}
    for key, text in settings.items():
        kind, name = _KEYS[key]
        try:
            values[name] = kind(text)
        except ValueError:
            raise _bad(f"{key} must be an integer, not {text[:100]!r}") from None
    return replace(config, **values)


def load_config(path: Path | None, flags: Mapping[str, Any]) -> ServerConfig:
    """The settings of a config file, overruled by those `flags` (fields of ServerConfig) that are not None."""
    values = _read(path) if path is not None else {}
    values.update((name, value) for name, value in flags.items() if value is not None)
    if isinstance(values.get("advertise"), str):
        values["advertise"] = parse_address(values["advertise"])
    for name in ("data_dir", "sasl_users"):
        if name in values:
            values[name] = Path(values[name])
    return ServerConfig(**values)


def effective_settings(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Keys and values for everyone to see: nothing that says where files lie on the server."""
    for key, (_, name) in _KEYS.items():
        value = getattr(config, name)
        if value is not None and not isinstance(value, Path):
            yield key, str(value)
    for item in fields(Limits):
        yield _LIMITS + item.name, str(getattr(config.limits, item.name))


def parse_address(text: str) -> Address:
    """`HOST:PORT`; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
        raise _bad(f"An address must be HOST:PORT with a port from 1 to {PORT_MAX}, not {text!r}")
    if ":" in host and not bracketed:
        raise _bad(f"Write the IPv6 address in brackets: [{host}]:{port}")
    return Address(host[1:-1] if bracketed else host, int(port))


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # only for servers that have such a file

    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise _bad(f"Config file {path} can't be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"Config file {path} is not TOML: {error}") from None
    try:
        return _settings(content)
    except InvalidRequestError as error:
        raise _bad(f"Config file {path}: {error.message.rstrip('.')}") from None


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    limits: dict[str, int] = {}
    iceberg: dict[str, str] = {}
    limit_names = [item.name for item in fields(Limits)]
    for key, given in _flat(content):
        if key.startswith(_CLIENT):
            continue
        value = resolved(key, given)
        if key.startswith(_LIMITS):
            name = key.removeprefix(_LIMITS).replace("-", "_")
            if name not in limit_names:
                raise _bad(f"unknown limit {name!r}; known are {', '.join(limit_names)}")
            limits[name] = _number(key, value) if value is not given else value
            continue
        if key.startswith(_ICEBERG):
            if not isinstance(value, str):
                raise _bad(f"{key} must be a string, not {value!r}")
            iceberg[key.removeprefix(_ICEBERG)] = value
            continue
        kind, name = _KEYS.get(key.replace("_", "-"), (None, ""))
        if kind is None:
            raise _bad(
                f"unknown key {key!r}; known are {', '.join(_KEYS)}, {_ICEBERG}* and those of the table [limits]"
            )
        if kind is int and value is not given:
            value = _number(key, value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _bad(f"{key} must be {'an integer' if kind is int else 'a string'}, not {value!r}")
        values[name] = value
    values["limits"] = Limits(**limits)
    values["datalake_iceberg"] = iceberg
    return values


def _number(key: str, text: str) -> int:
    """A number that stands elsewhere; what stands there is not shown."""
    try:
        return int(text)
    except ValueError:
        raise _bad(f"{key} must be an integer, and what it names is none") from None


def _check_iceberg(options: Mapping[str, str], datalake_format: str | None) -> None:
    if options and (datalake_format or ICEBERG).upper() != ICEBERG:
        raise _bad(f"{_ICEBERG}* is for datalake.format iceberg, not {datalake_format}; leave one of them out")
    if len(options) > ICEBERG_OPTIONS_MAX:
        raise _bad(f"{_ICEBERG}* may be {ICEBERG_OPTIONS_MAX} keys, not {len(options)}")
    for key, value in options.items():
        if not key or len(key) > PROPERTY_LENGTH_MAX or len(value) > PROPERTY_LENGTH_MAX:
            raise _bad(f"{_ICEBERG}{key[:100]} or its value is empty or longer than {PROPERTY_LENGTH_MAX} characters")


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, whether they were written `a.b = 1`, `"a.b" = 1` or as tables."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
