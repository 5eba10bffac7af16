"""The three facades offer the same names with the same parameters, and importing the package is light."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.api import union

FACADES = [fluss, fluss.aio, fluss.sync]
SHELLS = [
    "AppendWriter",
    "BatchScanner",
    "Changes",
    "FlussAdmin",
    "FlussConnection",
    "FlussTable",
    "LogScanner",
    "Lookuper",
    "PrefixLookuper",
    "StagedWrite",
    "StagedWriter",
    "TableAppend",
    "TableLookup",
    "TablePrefixLookup",
    "TableScan",
    "TableUpsert",
    "UnionScan",
    "UpsertWriter",
    "WriteResultHandle",
]


def methods(facade: ModuleType, name: str) -> dict[str, list[str]]:
    shell = getattr(facade, name)
    return {
        member: list(inspect.signature(value).parameters) if callable(value) else ["<property>"]
        for member, value in inspect.getmembers(shell)
        if not member.startswith("_")
    }


def test_names_agree() -> None:
    assert sorted(fluss.__all__) == sorted(fluss.aio.__all__) == sorted(fluss.sync.__all__)


@pytest.mark.parametrize("name", sorted(set(fluss.__all__) - {*SHELLS, "connect", "Config"}))
def test_values_are_the_same_objects(name: str) -> None:
    assert getattr(fluss, name) is getattr(fluss.aio, name) is getattr(fluss.sync, name)


def test_only_fluss_aio_ignores_settings_that_it_does_not_know() -> None:
    """Programs for pyfluss may have settings of a version to come; ours are told of a typo."""
    with pytest.warns(
        UserWarning, match=r"Unknown configuration key 'writer\.aks'\. Did you mean 'writer\.acks'\?"
    ) as told:
        config = fluss.aio.Config({"writer.aks": "1", "writer.acks": "0"})
    assert told[0].filename == __file__
    assert (config.writer_acks, isinstance(config, fluss.Config)) == ("0", True)
    assert type(config.copy()) is fluss.aio.Config
    assert config == pickle.loads(pickle.dumps(config)) == fluss.Config({"writer.acks": "0"})
    for facade in (fluss, fluss.sync):
        with pytest.raises(fluss.InvalidRequestError, match=r"Did you mean 'writer\.acks'"):
            facade.Config({"writer.aks": "1"})
    with pytest.raises(fluss.InvalidRequestError, match="Invalid value '2' for writer"):
        fluss.aio.Config({"writer.acks": "2"})
    with pytest.raises(fluss.InvalidRequestError, match="Unknown configuration key 'request_timeout'"):
        fluss.aio.connect("127.0.0.1:1", request_timeout=5)


@pytest.mark.parametrize("name", SHELLS)
def test_shells_have_the_same_methods(name: str) -> None:
    assert methods(fluss, name) == methods(fluss.aio, name) == methods(fluss.sync, name)


@pytest.mark.parametrize("name", SHELLS)
def test_what_is_awaited(name: str) -> None:
    """`fluss.sync` awaits nothing; `fluss.aio` awaits all that `fluss` awaits, and reading from scanners too."""

    def awaited(facade: ModuleType) -> set[str]:
        shell = getattr(facade, name)
        return {m for m in methods(facade, name) if inspect.iscoroutinefunction(getattr(shell, m))}

    assert awaited(fluss.sync) == set()
    extra = awaited(fluss.aio) - awaited(fluss)
    results = {"to_arrow", "to_duckdb", "to_pandas", "to_polars"}
    reads = {
        "LogScanner": {"poll", "poll_arrow", "poll_batches", "poll_record_batch"} | results,
        "BatchScanner": {"next_batch", "collect_all_batches"} | results,
        "Changes": {"poll"},
        "TableScan": {"to_arrow_with_offsets", "head", "count"} | results,
        "UnionScan": results,
        "FlussConnection": {"close"},
    }
    assert extra == reads.get(name, set())
    assert awaited(fluss) <= awaited(fluss.aio)


def test_the_reader_of_lake_and_log_is_where_scans_look_for_it() -> None:
    """`api/union.py` names it by text, so no type checker sees when it moves or changes."""
    reader = getattr(importlib.import_module(union.READER_MODULE), union.READER)
    given = list(inspect.signature(union.union_read).parameters)
    assert list(inspect.signature(reader).parameters) == given
    for name in ("to_arrow", "batch_reader", "to_duckdb"):
        wanted = inspect.signature(getattr(union.UnionRows, name))
        assert inspect.signature(getattr(reader, name)) == wanted


def test_import_loads_no_arrow() -> None:
    code = "import fluss, sys; fluss.Config(); assert not {'pyarrow', 'numpy', 'pandas', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fluss.no_such_name
    assert "FlussConnection" in dir(fluss)
    assert fluss.__version__
