"""Upsert writers of all facades, in all spellings, on a real server."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

import fluss
from tests.unit.api.conftest import Client

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])
_numbers = itertools.count()


def keyed(client: Client, columns: pa.Schema = COLUMNS, keys: tuple[str, ...] = ("id",), **options: Any) -> Any:
    """A new primary-key table."""
    path = fluss.TablePath("fluss", f"upsert_{client.facade.__name__.replace('.', '_')}_{next(_numbers)}")
    schema = fluss.Schema(columns, list(keys), **options.pop("schema", {}))
    client.do(client.admin.create_table(path, fluss.TableDescriptor(schema, **{"bucket_count": 1, **options})))
    return client.do(client.connection.get_table(path))


def changes(client: Client, table: Any, count: int) -> list[tuple[Any, ...]]:
    """The first changes of a table with one bucket."""
    scanner = client.record_scanner(table.new_scan())
    polled = client.poll(scanner, count)
    client.do(scanner.close())
    return [(record.change_type.short_string(), *record.row.values()) for record in polled]


def test_the_builder_is_a_writer_too(client: Client) -> None:
    table = keyed(client)
    writer = table.new_upsert()
    writer.upsert({"id": 1, "name": "Alice", "age": 25})
    writer.upsert([2, "Bob", 30])
    client.do(writer.flush())
    client.do(writer.upsert({"id": 1, "name": "Alice", "age": 26}).wait())
    client.do(writer.delete({"id": 2}).wait())
    assert changes(client, table, 5) == [
        ("+I", 1, "Alice", 25),
        ("+I", 2, "Bob", 30),
        ("-U", 1, "Alice", 25),
        ("+U", 1, "Alice", 26),
        ("-D", 2, "Bob", 30),
    ]


def test_a_writer_as_context_manager(client: Client) -> None:
    table = keyed(client)
    writer = table.new_upsert().create_writer()
    if client.facade is fluss.sync:
        with writer:
            writer.upsert([1, "a", 1])
    else:

        async def write() -> None:
            async with writer:
                writer.upsert([1, "a", 1])

        client.do(write())
    assert changes(client, table, 1) == [("+I", 1, "a", 1)]
    assert repr(writer) == f"UpsertWriter({table.table_path}, pending_rows=0)"
    client.do(writer.drain())


def test_every_spelling_of_a_partial_update(client: Client) -> None:
    table = keyed(client)
    client.do(table.new_upsert().upsert([1, "kept", 0]).wait())
    whole = table.new_upsert()
    builders = [
        table.new_upsert(columns=["id", "age"]),
        table.new_upsert(["id", "age"]),
        whole.partial_update_by_name(["id", "age"]),
        whole.partial_update_by_index([0, 2]),
        whole.partial_update([0, 2]),
        whole.partial_update_with_column_names(["id", "age"]),
    ]
    for number, builder in enumerate(builders, 1):
        client.do(builder.upsert({"id": 1, "age": number}).wait())
    client.do(builders[-1].create_writer().upsert([1, 7]).wait())
    client.do(builders[-1].partial_update(None).upsert([1, "changed", 8]).wait())
    after = [change for change in changes(client, table, 17) if change[0] == "+U"]
    assert after == [*(("+U", 1, "kept", number) for number in range(1, 8)), ("+U", 1, "changed", 8)]
    assert repr(builders[0]) == f"TableUpsert({table.table_path}, columns=['id', 'age'])"
    assert repr(whole) == f"TableUpsert({table.table_path})"  # steps make new builders


def test_bulk_writes(client: Client) -> None:
    table = keyed(client)
    for writer in (table.new_upsert(), table.new_upsert().create_writer()):
        writer.write_arrow(pa.table({"id": [1, 2], "name": ["a", "b"]}))
        client.do(writer.write_arrow_batch(pa.record_batch({"id": [3], "age": [3]})).wait())
        writer.write_pandas(pa.table({"id": [4], "age": [4]}).to_pandas())
        client.do(writer.flush())
        writer.delete_arrow(pa.table({"id": [1, 3]}))
        client.do(writer.delete_arrow(pa.record_batch({"id": [2, 4], "age": [0, 0]})).wait())
    rows = [(1, "a", None), (2, "b", None), (3, None, 3), (4, None, 4)]
    once = [*(("+I", *row) for row in rows), *(("-D", *rows[index]) for index in (0, 2, 1, 3))]
    assert changes(client, table, 16) == once * 2


def test_many_rows_one_by_one(client: Client) -> None:
    table = keyed(client, bucket_count=3)
    writer = table.new_upsert().create_writer()
    for number in range(3_000):
        writer.upsert({"id": number % 1_000, "name": f"n{number}", "age": number})
        if number % 10 == 0:
            writer.delete([number % 1_000])
    client.do(writer.flush())
    rows: dict[int, int] = {}
    scanner = client.record_scanner(table.new_scan(), 3)
    # 3000 upserts: 1000 inserts, 900 updates of two changes, 100 inserts after a delete, twice; and 300 deletes.
    for record in client.poll(scanner, 1_000 + 2 * (900 * 2 + 100) + 300):
        if record.change_type.short_string() in ("+I", "+U"):
            rows[record.row["id"]] = record.row["age"]
        elif record.change_type.short_string() == "-D":
            del rows[record.row["id"]]
    assert rows == {number: number + 2_000 for number in range(1_000) if number % 10}
    client.do(scanner.close())


def test_partitions(client: Client) -> None:
    columns = pa.schema([("id", pa.int64()), ("region", pa.string()), ("score", pa.int64())])
    table = keyed(client, columns, ("id", "region"), partition_keys=["region"])
    client.do(client.admin.create_partition(table.table_path, {"region": "US"}))
    writer = table.new_upsert().create_writer()
    lost = [writer.upsert([1, "Mars", 1]), writer.delete({"id": 1, "region": "Mars"})]
    kept = [writer.upsert([1, "US", 1]), writer.upsert([2, "US", 2]), writer.delete([1, "US"])]
    for handle in lost:
        with pytest.raises(fluss.NotFoundError, match="'Mars'"):
            client.do(handle.wait())
    for handle in kept:
        client.do(handle.wait())
    with pytest.raises(fluss.SchemaMismatchError, match="'region'"):
        writer.upsert({"id": 1, "score": 5})


def test_a_numbered_column(client: Client) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("number", pa.int64())])
    table = keyed(client, columns, schema={"auto_increment_column": "number"})
    writer = table.new_upsert()
    for row in ({"id": 7, "name": "a"}, [8, "b"], [7, "c", None]):
        client.do(writer.upsert(row).wait())
    first, second, before, after = changes(client, table, 4)
    assert (first, before, after) == (
        ("+I", 7, "a", first[3]),
        ("-U", 7, "a", first[3]),
        ("+U", 7, "c", first[3]),
    )
    assert second[:3] == ("+I", 8, "b")
    assert second[3] > first[3]


def test_past_the_merge_engine(client: Client) -> None:
    table = keyed(client, properties={"table.merge-engine": "first_row"})
    writer = table.new_upsert()
    for age in (1, 2):
        client.do(writer.upsert([1, "a", age]).wait())
    client.do(writer.merge_mode(fluss.MergeMode.OVERWRITE).upsert([1, "a", 3]).wait())
    assert changes(client, table, 3) == [("+I", 1, "a", 1), ("-U", 1, "a", 1), ("+U", 1, "a", 3)]
    plain = keyed(client).new_upsert()
    with pytest.raises(fluss.InvalidRequestError, match="no merge engine"):
        plain.merge_mode(fluss.MergeMode.OVERWRITE)
    with pytest.raises(fluss.InvalidRequestError, match=r"MergeMode\.OVERWRITE, not 'overwrite'"):
        plain.merge_mode("overwrite")
    client.do(plain.merge_mode(fluss.MergeMode.DEFAULT).upsert([1, "a", 1]).wait())


def test_tables_without_a_key_are_not_upserted(client: Client) -> None:
    with pytest.raises(fluss.InvalidRequestError, match="appended, not upserted"):
        client.table(COLUMNS).new_upsert()
    with pytest.raises(fluss.InvalidRequestError, match="upserted, not appended"):
        keyed(client).new_append().create_writer()


def test_bad_columns_of_a_partial_update(client: Client) -> None:
    builder = keyed(client).new_upsert()
    for names, text in ((["id", "nope"], "'nope'"), (["age"], "primary key; 'id'")):
        with pytest.raises(fluss.InvalidRequestError, match=text) as caught:
            builder.partial_update_by_name(names)
        assert caught.value.error_code == 35
    with pytest.raises(fluss.InvalidRequestError, match="range 0 to 2"):
        builder.partial_update_by_index([0, 3])
