"""Client configuration."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from fluss.model.errors import ErrorCode, InvalidRequestError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class Option:
    """One configuration key: a typed attribute of Config that is checked when set."""

    def __init__(
        self,
        key: str,
        default: str | int | bool,
        doc: str,
        *,
        low: int = 0,
        high: int = _INT32_MAX,
        choices: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.default = default
        self.__doc__ = doc
        self.low, self.high = low, high
        self.choices = choices
        self.aliases = aliases

    def __set_name__(self, owner: type[Config], name: str) -> None:
        self.name = name
        for key in (self.key, *self.aliases):
            owner.OPTIONS[key] = self

    def __get__(self, config: Config | None, owner: type[Config] | None = None) -> Any:
        return self if config is None else config._values.get(self.name, self.default)

    def __set__(self, config: Config, value: object) -> None:
        config._values[self.name] = self._checked(value)

    def _checked(self, value: object) -> str | int | bool:
        if isinstance(self.default, bool):
            return self._checked_bool(value)
        if isinstance(self.default, int):
            return self._checked_int(value)
        if not isinstance(value, str):
            raise self._bad(value, "a string")
        if not self.choices:
            return value
        for choice in self.choices:
            if choice.lower() == value.lower():
                return choice
        raise self._bad(value, "one of " + ", ".join(self.choices))

    def _checked_bool(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise self._bad(value, "true or false")

    def _checked_int(self, value: object) -> int:
        expected = f"an integer from {self.low} to {self.high}"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise self._bad(value, expected)
        try:
            number = int(value)
        except ValueError:
            raise self._bad(value, expected) from None
        if not self.low <= number <= self.high:
            raise self._bad(value, expected)
        return number

    def _bad(self, value: object, expected: str) -> InvalidRequestError:
        shown = "***" if "password" in self.key else repr(value)
        return InvalidRequestError(
            f"Invalid value {shown} for {self.key}: expected {expected}.", ErrorCode.INVALID_CONFIG_EXCEPTION
        )


class Config:
    """Settings of a connection, from a dict of keys or as attributes.

    Keys work with and without the prefix `client.`; values may be strings, ints or bools.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {}
    __slots__ = ("_values",)

    bootstrap_servers = Option("bootstrap.servers", "127.0.0.1:9123", "Server addresses, host:port, comma-separated.")
    connect_timeout_ms = Option(
        "connect-timeout", 120_000, "Time limit for opening a connection.", low=1, aliases=("connect-timeout-ms",)
    )
    request_timeout_ms = Option("request-timeout-ms", 30_000, "Time limit of one request.", low=1)
    server_wait_timeout_ms = Option(
        "server.wait-timeout-ms", 0, "How long connecting, reads and administration wait for a server that is away."
    )
    close_timeout_ms = Option(
        "close.timeout-ms", 30_000, "How long closing a connection waits for rows that are not acknowledged yet."
    )

    writer_request_max_size = Option(
        "writer.request-max-size", 10 << 20, "Largest write request, in bytes.", low=1024, aliases=("request.max.size",)
    )
    writer_acks = Option("writer.acks", "all", "When a write counts as done.", choices=("all", "-1", "1", "0"))
    writer_retries = Option("writer.retries", _INT32_MAX, "How often a failed write is tried again.")
    writer_delivery_timeout_ms = Option(
        "writer.delivery-timeout-ms", 120_000, "After this time a write fails, whatever its retries.", low=1
    )
    writer_batch_size = Option(
        "writer.batch-size", 2 << 20, "A batch is sent at this size, in bytes.", low=1, aliases=("writer.batch.size",)
    )
    writer_batch_timeout_ms = Option(
        "writer.batch-timeout-ms",
        100,
        "A batch is sent after this time, full or not.",
        aliases=("writer.batch-timeout",),
    )
    writer_dynamic_batch_size_enabled = Option(
        "writer.dynamic-batch-size-enabled",
        True,
        "Accepted for compatibility; batches adapt by themselves.",
        aliases=("writer.dynamic-batch-size.enabled",),
    )
    writer_dynamic_batch_size_min = Option(
        "writer.dynamic-batch-size-min",
        256 << 10,
        "Accepted for compatibility.",
        aliases=("writer.dynamic-batch-size.min",),
    )
    writer_bucket_no_key_assigner = Option(
        "writer.bucket.no-key-assigner",
        "sticky",
        "How rows of a table without bucket key are spread: by batches, one by one, or in slices of batches.",
        choices=("sticky", "round_robin", "slices"),
    )
    writer_dynamic_create_partition_enabled = Option(
        "writer.dynamic-create-partition.enabled", False, "Create a partition when the first row for it is written."
    )
    writer_enable_idempotence = Option("writer.enable-idempotence", True, "Store a retried batch once.")
    writer_max_inflight_requests_per_bucket = Option(
        "writer.max-inflight-requests-per-bucket", 5, "Batches under way per bucket.", low=1, high=5
    )
    writer_buffer_memory_size = Option(
        "writer.buffer.memory-size", 64 << 20, "Rows waiting to be sent, in bytes.", low=1, high=_INT64_MAX
    )
    writer_buffer_wait_timeout_ms = Option(
        "writer.buffer.wait-timeout",
        120_000,
        "How long append waits for room in the buffer.",
        high=2**64 - 1,
        aliases=("writer.buffer.wait-timeout-ms",),
    )
    writer_kv_backpressure_max_throttle_ms = Option(
        "writer.kv-backpressure.max-throttle-ms", 3_000, "Longest pause a loaded server may ask for."
    )
    writer_retry_backoff_ms = Option(
        "writer.retry-backoff-ms", 20, "The pause after the first failure of a write; it doubles with each.", low=1
    )
    writer_retry_max_backoff_ms = Option(
        "writer.retry-max-backoff-ms", 1_000, "The longest pause between tries of a write.", low=1
    )
    bucket_hash = Option(
        "bucket-hash",
        "java",
        "Bucket function for keyed tables; 'pyfluss' matches rows written by pyfluss 1.0.0.",
        choices=("java", "pyfluss"),
    )

    lookup_queue_size = Option(
        "lookup.queue-size", 25_600, "Accepted for compatibility; a million lookups may wait.", low=1
    )
    lookup_max_batch_size = Option("lookup.max-batch-size", 4_096, "Most keys of one lookup request.", low=1)
    lookup_batch_timeout_ms = Option(
        "lookup.batch-timeout-ms",
        0,
        "Accepted for compatibility; lookups do not wait for others.",
        aliases=("lookup.batch-timeout",),
    )
    lookup_max_inflight_requests = Option(
        "lookup.max-inflight-requests", 4, "Lookup requests of a table under way per server.", low=1
    )
    lookup_max_retries = Option("lookup.max-retries", _INT32_MAX, "How often a failed lookup is tried again.")

    scanner_log_max_poll_records = Option("scanner.log.max-poll-records", 500, "Most records one poll returns.", low=1)
    scanner_log_fetch_max_bytes = Option("scanner.log.fetch.max-bytes", 16 << 20, "Largest fetch answer.", low=1)
    scanner_log_fetch_min_bytes = Option("scanner.log.fetch.min-bytes", 1, "Bytes the server waits for.")
    scanner_log_fetch_wait_max_time_ms = Option(
        "scanner.log.fetch.wait-max-time-ms",
        500,
        "How long the server waits for them; not set, less where rows would come late.",
        aliases=("scanner.log.fetch.wait-max-time",),
    )
    scanner_log_fetch_max_bytes_for_bucket = Option(
        "scanner.log.fetch.max-bytes-for-bucket",
        1 << 20,
        "Largest fetch answer per bucket; not set, it is up to 4 MiB where few buckets are read.",
        low=1,
    )
    scanner_remote_log_prefetch_num = Option("scanner.remote-log.prefetch-num", 4, "Remote segments read ahead.", low=1)
    scanner_remote_log_read_concurrency = Option(
        "scanner.remote-log.read-concurrency", 4, "Parallel reads within a remote segment.", low=1
    )
    remote_file_download_thread_num = Option("remote-file.download-thread-num", 3, "Download threads.", low=1)

    security_protocol = Option("security.protocol", "PLAINTEXT", "Log in or not.", choices=("PLAINTEXT", "sasl"))
    security_sasl_mechanism = Option("security.sasl.mechanism", "PLAIN", "How to log in.", choices=("PLAIN",))
    security_sasl_username = Option("security.sasl.username", "", "User name.")
    security_sasl_password = Option("security.sasl.password", "", "Password.")

    lake_trusted = Option(
        "lake.trusted",
        "",
        "Hosts, paths and buckets that a server or a lake's catalog may name, comma-separated; others are not used.",
    )

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for key, value in (properties or {}).items():
            option = self.OPTIONS.get(key) or self.OPTIONS.get(str(key).removeprefix("client."))
            if option is None:
                self._unknown(f"Unknown configuration key {key!r}.{_suggestion(str(key), self.OPTIONS)}")
            else:
                option.__set__(self, value)

    def _unknown(self, problem: str) -> None:
        raise InvalidRequestError(problem, ErrorCode.INVALID_CONFIG_EXCEPTION)

    def copy(self) -> Self:
        """An independent copy."""
        result = type(self)()
        result._values = dict(self._values)
        return result

    def to_dict(self) -> dict[str, Any]:
        """The keys that were set, password included: for shipping a connection's settings to another process."""
        return {
            option.key: self._values[option.name]
            for option in set(self.OPTIONS.values())
            if option.name in self._values
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {key: "***" if "password" in key else value for key, value in sorted(self.to_dict().items())}
        return f"Config({shown})"


class LenientConfig(Config):
    """Settings of a connection, from a dict of keys or as attributes. Keys that are not known are warned of.

    Keys work with and without the prefix `client.`; values may be strings, ints or bools.
    """

    __slots__ = ()

    def _unknown(self, problem: str) -> None:
        warnings.warn(f"{problem} It is ignored.", stacklevel=3)


_MARKER: Final = re.compile(r"\$\{(env|file):([^{}]*)\}")


def resolved(key: str, value: Any) -> Any:
    """A value of fluss.toml in which secrets are named instead of written down, with what they stand for.

    `${env:NAME}` is a variable of the environment, `${file:PATH}` the content of a file without the line break at its
    end, and `${file:PATH:NAME}` what stands behind `NAME=` in a line of it. Errors do not show what was found.
    """
    if not isinstance(value, str):
        return value
    return _MARKER.sub(lambda marker: _secret(key, *marker.groups()), value)


def _secret(key: str, kind: str, name: str) -> str:
    found = os.environ.get(name) if kind == "env" else _in_file(key, name)
    if found is None:
        what = "the environment has no such variable" if kind == "env" else "the file has no line that begins with it"
        raise _bad_secret(key, kind, name, what)
    return found


def _in_file(key: str, name: str) -> str | None:
    path, wanted = (name, "") if Path(name).is_file() else name.rpartition(":")[::2]
    try:
        text = Path(path or name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_secret(key, "file", name, getattr(error, "strerror", None) or "it is not UTF-8") from None
    if not wanted:
        return text.removesuffix("\n")
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return next((value.strip() for found, _, value in pairs if found.strip() == wanted), None)


def _bad_secret(key: str, kind: str, name: str, what: str) -> InvalidRequestError:
    text = f"{key} needs ${{{kind}:{name}}}: {what}."
    return InvalidRequestError(text, ErrorCode.INVALID_CONFIG_EXCEPTION)


def _suggestion(key: str, known: Mapping[str, Option]) -> str:
    import difflib

    close = difflib.get_close_matches(key, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
