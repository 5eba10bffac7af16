"""A partitioned table whose partitions and columns change, with what must hold of it after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import fluss
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.rows import SCHEMA, Row, wire_batch
from tests.kit.wire import Wire

PATH = fluss.TablePath("fluss", "parted")
KEPT, DROPPED = "1", "2"
COLUMN = "added"


class Partitions:
    """Makes a table with two partitions, adds a column, drops a partition; each step may be the last."""

    def __init__(self) -> None:
        self.made = False
        self.altered = False
        self.promised: set[str] = set()  # partitions that must be there
        self.gone: set[str] = set()  # and those that must not

    def change(self, wire: Wire) -> None:
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA),
            bucket_count=1,
            partition_keys=["writer"],
            properties={"table.log.arrow.compression.type": "NONE"},
        )
        table_id = wire.create_table(PATH, descriptor)
        self.made = True
        for value in (KEPT, DROPPED):
            wire.create_partition(PATH, writer=value)
            self.promised.add(value)
            batch = wire_batch([Row(int(value), 0)])
            assert wire.produce(table_id, 0, batch, wire.partition_ids(PATH)[value]).error_code == 0
        addition = pb.PbAddColumn(column_name=COLUMN, data_type_json=b'{"type":"INTEGER"}', column_position_type=0)
        wire.call(
            api_keys.ALTER_TABLE,
            pb.AlterTableRequest(table_path=_path(), ignore_if_not_exists=False, add_columns=[addition]),
        )
        self.altered = True
        self.promised.discard(DROPPED)
        wire.drop_partition(PATH, writer=DROPPED)
        self.gone.add(DROPPED)

    def check(self, wire: Wire, data_dir: Path) -> None:
        """After a restart: what was acknowledged holds, and no file is left of what is gone."""
        if not wire.table_exists(PATH):
            assert not self.made
            return
        ids = wire.partition_ids(PATH)
        assert self.promised <= set(ids)
        assert not self.gone & set(ids)
        self._check_schema(wire)
        directory = data_dir / "tables" / str(wire.table_id(PATH))
        if directory.exists():
            assert {path.name for path in directory.iterdir()} <= {f"p{identity}" for identity in ids.values()}

    def _check_schema(self, wire: Wire) -> None:
        latest = wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=_path()))
        columns = [column["name"] for column in json.loads(latest.schema_json)["columns"]]
        assert (COLUMN in columns) == (latest.schema_id == 2)
        assert latest.schema_id == 2 or not self.altered
        info = wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=_path()))
        assert [column["name"] for column in json.loads(info.table_json)["schema"]["columns"]] == columns
        first = wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=_path(), schema_id=1))
        assert [column["name"] for column in json.loads(first.schema_json)["columns"]] == SCHEMA.names


def _path() -> pb.PbTablePath:
    return pb.PbTablePath(database_name=PATH.database_name, table_name=PATH.table_name)
