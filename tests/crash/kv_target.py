"""A server with primary-key tables of every kind and normal clients of others, and the check that all is consistent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fluss
import fluss.sync
from fluss.protocol import api_keys
from fluss.testing import FlussServer
from tests.crash.kv_samples import KvSample, kv_samples
from tests.crash.servers import new_server
from tests.crash.target import Target
from tests.kit.loads.kv_clients import BUCKETS, KvLoad, make_tables
from tests.kit.loads.writers import client_config
from tests.kit.mutations import Pools
from tests.kit.wire import Wire, put_request

STORES_BYTES: Final = 32 << 20
END_S_MAX: Final = 60.0
# Of bystanders: what they wrote is compared in the end.
PAUSE_S: Final = 0.05
BUCKET: Final = 0


class KvTarget(Target):
    """With a table of each kind, of which the server has all good batches."""

    def __init__(self, server: FlussServer, load: KvLoad) -> None:
        self.samples = kv_samples()
        self.ids: dict[str, int] = {}
        with Wire(server.bootstrap_servers) as wire:
            self.others_ids = {wire.table_id(path) for path in BUCKETS}
            for sample in self.samples:
                self.ids[sample.name] = wire.create_table(sample.path, sample.descriptor)
                for targets in sample.targets:
                    for batch in sample.batches:
                        answer = wire.call(api_keys.PUT_KV, put_request(self.ids[sample.name], BUCKET, batch, targets))
                        assert not answer.buckets_resp[0].error_code, (sample.name, targets, answer)
        super().__init__(server, load, self.ids[self.samples[0].name])

    def pools(self) -> Pools:
        """Values that a request for primary-key tables may have."""
        return Pools(
            {
                "database_name": ["fluss"],
                "table_name": list(self.ids),
                "table_id": list(self.ids.values()),
                "bucket_id": [BUCKET],
                "records": [batch for sample in self.samples for batch in sample.batches],
                "keys": [key[:length] for sample in self.samples for key in sample.keys for length in (1, 3, 99)],
                "target_columns": [0, 1, 2],
                "agg_mode": [0, 1],
                "acks": [-1, 1, 0],
                "limit": [10, 1_000],
                "batch_size_bytes": [1, 1_000, 1 << 20],
                "call_seq_id": [0, 0, 1],
                "lease_id": ["a", "b"],
                "lease_duration_ms": [1_000],
                "snapshot_id": [0, 1, 2, 3],
                "max_bytes": [1 << 20],
                "max_fetch_bytes": [10_000],
                "fetch_offset": [0, 30],
            }
        )

    def check_tables(self) -> None:
        """Each table is the fold of its changelog."""
        with fluss.sync.FlussConnection.create(client_config(self.server.bootstrap_servers, {})) as connection:
            for sample in self.samples:
                check_table(connection, sample)

    def rebuild(self) -> None:
        """Kill the server, take away all but the logs, and start it again."""
        self.server.kill()
        for bucket in (self.server.data_dir / "tables").rglob("[0-9]*"):
            for name in ("kv", "snapshots"):
                if (bucket / name).is_dir():
                    shutil.rmtree(bucket / name)
        self.server.start()


def check_table(connection: fluss.sync.FlussConnection, sample: KvSample) -> None:
    table = connection.get_table(sample.path)
    rows, offsets = table.new_scan().to_arrow_with_offsets()
    (offset,) = offsets.values()
    scanner = table.new_scan().create_changelog_batch_scanner()
    scanner.subscribe_buckets({BUCKET: fluss.EARLIEST_OFFSET})
    changes = scanner.to_arrow()
    scanner.close()
    changes = changes.filter(pc.less(changes["_log_offset"], offset))
    keys = sample.schema.get_primary_keys()
    folded = fold(changes["_change_type"].to_pylist(), _by_key(changes.drop_columns(changes.column_names[:3]), keys))
    assert folded == dict(_by_key(rows, keys)), sample.name


def _by_key(table: pa.Table, keys: list[str]) -> list[tuple[str, str]]:
    """Key and row of each row, as text: then all values can be compared, NaN too, and times beyond Python's."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
    keys_of = map(repr, table.select(keys).to_pylist())
    return list(zip(keys_of, map(repr, table.to_pylist()), strict=True))


def fold(kinds: list[str], changed: list[tuple[str, str]]) -> dict[str, str]:
    """The rows that changes leave; one that does not fit those before it is an error. Old rows may be left out."""
    rows: dict[str, str] = {}
    has_old_rows = "-U" in kinds
    for number, (kind, (key, row)) in enumerate(zip(kinds, changed, strict=True)):
        place = f"change {number}: {kind} {row}"
        if kind in ("-U", "-D"):
            assert rows[key] == row, place
        assert kind != "+I" or key not in rows, place
        assert kind != "+U" or not has_old_rows or kinds[number - 1] == "-U", place
        if kind == "-D":
            del rows[key]
        elif kind != "-U":
            rows[key] = row
    return rows


@pytest.fixture(scope="module")
def kv_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvTarget]:
    with new_server(tmp_path_factory.mktemp("hostile"), more=f'"kv.memory-bytes" = {STORES_BYTES}\n') as server:
        make_tables(server.bootstrap_servers)
        load = KvLoad(server.bootstrap_servers, 0, PAUSE_S)
        load.start()
        try:
            load.await_progress(END_S_MAX)
            yield KvTarget(server, load)
            load.finish(END_S_MAX)
        finally:
            load.stop()
