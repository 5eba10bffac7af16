"""The core on a real Apache Fluss cluster: append, flush, scan, tail, lost answers, a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.batches import to_table
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import InvalidRequestError, NotFoundError
from fluss.model.offsets import LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TablePath
from fluss.testing import ApacheFluss
from tests.kit.client_tables import everything, make_table

pytestmark = pytest.mark.compat

HEAL_S_MAX = 60.0  # a killed server's successor waits for the old session to end


@pytest.fixture
def client(apache_fluss: ApacheFluss) -> Iterator[ClientCore]:
    connected = run(ClientCore.connect(Config({"bootstrap.servers": apache_fluss.bootstrap_servers})))
    yield connected
    run(connected.close())


@pytest.fixture
def make(client: ClientCore) -> Callable[..., TableCore]:
    return partial(make_table, client)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD", "LZ4_FRAME"])
def test_rows_and_arrow_are_written_and_read_back(make: Callable[..., TableCore], compression: str) -> None:
    table = make(3, bucket_keys=["id"], properties={"table.log.arrow.compression.type": compression})
    writer = table.append_writer()
    for number in range(1_000):
        writer.append({"id": number, "name": f"n{number}", "value": None})
    ids = list(range(1_000, 3_000))
    writer.write_batch(pa.record_batch({"id": ids, "name": ["x"] * 2_000, "value": [0.5] * 2_000}))
    run(writer.flush())
    assert sorted(everything(table)["id"].to_pylist()) == list(range(3_000))
    scanner = table.log_scanner([2, 0])
    run(scanner.subscribe({(None, bucket): -2 for bucket in range(3)}))
    projected = to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
    assert projected.column_names == ["value", "id"]
    assert sorted(projected["id"].to_pylist()) == list(range(3_000))


def test_a_tail_follows_appends(make: Callable[..., TableCore], client: ClientCore) -> None:
    table = make()
    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, 0): LATEST_OFFSET}))
    writer = table.append_writer()
    for number in range(5):
        writer.append([number, "a", 0.5]).result(10)
        seen: list[int] = []
        while not seen:
            seen = [item for part in run(scanner.poll_batches(5_000, 1)) for item in part.batch["id"].to_pylist()]
        assert seen == [number]
    assert run(client.admin.list_offsets(table.info.table_path, [0], OffsetSpec.latest())) == {0: 5}


def test_errors_are_clear(make: Callable[..., TableCore], client: ClientCore) -> None:
    with pytest.raises(NotFoundError, match=r"fluss\.nowhere") as caught:
        run(client.table(TablePath("fluss", "nowhere")))
    assert caught.value.error_code == 7
    scanner = make().log_scanner(None)
    run(scanner.subscribe({(None, 0): 99}))
    with pytest.raises(InvalidRequestError, match="has offsets 0 to 0"):
        run(scanner.poll_batches(10_000, None))


def test_a_restart_of_the_cluster_heals(
    make: Callable[..., TableCore], client: ClientCore, apache_fluss: ApacheFluss
) -> None:
    table = make()
    writer = table.append_writer()
    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, 0): -2}))
    writer.append([0, "a", 0.5]).result(10)
    apache_fluss.restart()
    writer.append([1, "a", 0.5]).result(HEAL_S_MAX)
    ids: list[int] = []
    deadline = time.monotonic() + HEAL_S_MAX
    while len(ids) < 2 and time.monotonic() < deadline:
        ids.extend(item for part in run(scanner.poll_batches(1_000, None)) for item in part.batch["id"].to_pylist())
    assert ids == [0, 1]
    assert client.metadata.cluster.coordinator is not None
