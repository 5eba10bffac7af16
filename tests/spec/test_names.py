"""The table of names is true and complete."""

from __future__ import annotations

from functools import reduce
from types import ModuleType

import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.model.config import Option
from tests.spec.names import DOCUMENT, Name, names, table

# `fluss.sync` awaits nothing, so a write's handle can't be awaited there.
NOT_IN_SYNC = {"WriteResultHandle.__await__"}


@pytest.mark.parametrize("facade", [fluss, fluss.aio, fluss.sync], ids=lambda facade: str(facade.__name__))
def test_every_spelling_exists(facade: ModuleType) -> None:
    def exists(name: Name) -> bool:
        try:
            reduce(getattr, str(name.spelling).split("."), facade)
        except AttributeError:
            return name.spelling in _annotated(facade, name)
        return True

    skipped = NOT_IN_SYNC if facade is fluss.sync else set()
    missing = [name for name in names() if name.spelling and name.spelling not in skipped and not exists(name)]
    assert not missing


def _annotated(facade: ModuleType, name: Name) -> set[str]:
    """Attributes that only instances have."""
    owner, _, _ = str(name.spelling).partition(".")
    kind = getattr(facade, owner, None)
    annotations = getattr(kind, "__annotations__", {})
    instance = {"message", "error_code"} if owner == "FlussError" else set()
    return {f"{owner}.{attribute}" for attribute in {*annotations, *instance}}


def test_documentation_is_current() -> None:
    assert DOCUMENT.read_text() == table(), "run python -m tests.spec.names"


def test_defaults_of_the_specification() -> None:
    defaults = {option.key: option.default for option in fluss.Config.OPTIONS.values() if isinstance(option, Option)}
    assert {
        "bootstrap.servers": "127.0.0.1:9123",
        "writer.request-max-size": 10485760,
        "writer.acks": "all",
        "writer.retries": 2147483647,
        "writer.batch-size": 2097152,
        "writer.batch-timeout-ms": 100,
        "writer.bucket.no-key-assigner": "sticky",
        "scanner.remote-log.prefetch-num": 4,
        "remote-file.download-thread-num": 3,
        "scanner.remote-log.read-concurrency": 4,
        "scanner.log.max-poll-records": 500,
        "scanner.log.fetch.max-bytes": 16777216,
        "scanner.log.fetch.min-bytes": 1,
        "scanner.log.fetch.wait-max-time-ms": 500,
        "scanner.log.fetch.max-bytes-for-bucket": 1048576,
        "connect-timeout": 120000,
        "security.protocol": "PLAINTEXT",
        "security.sasl.mechanism": "PLAIN",
        "security.sasl.username": "",
        "security.sasl.password": "",
    }.items() <= defaults.items()
    old_spellings = fluss.Config({"request.max.size": 2000, "writer.batch.size": "3000"})
    assert (old_spellings.writer_request_max_size, old_spellings.writer_batch_size) == (2000, 3000)
