"""Folding against a model: a dict, one record at a time, rows as tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.batches.kv_batch import KvRecords
from fluss.formats.changelog.aggregation import CHANGES_SIZE_MAX_BYTES
from fluss.formats.changelog.fold import FoldedPuts, Folder, check_target_columns
from fluss.formats.rows.python_rows import to_tuples
from fluss.formats.rows.values import ValueCodec
from fluss.model.descriptor import KvFormat
from fluss.model.errors import CorruptDataError, InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables.merge_rules import ChangelogImage, DeleteBehavior, MergeEngine, MergeRules, check_version_column
from fluss.model.types import DataType, DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import in_both_modes, needs_both

Row = tuple[Any, ...]
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
FULL, WAL = ChangelogImage.FULL, ChangelogImage.WAL
FIRST_ROW, VERSIONED = MergeEngine.FIRST_ROW, MergeEngine.VERSIONED
# The key is not the first column, so that indexes and order are not the same by chance.
COLUMNS = [
    Column("a", DataTypes.int()),
    Column("id", DataTypes.int()),
    Column("b", DataTypes.string()),
    Column("c", DataTypes.bigint()),
]
OLDER, NEWER = 3, 4
SCHEMAS = {OLDER: Schema.of(COLUMNS[:3], ["id"]), NEWER: Schema.of(COLUMNS, ["id"])}
KEY, WIDTH = 1, len(COLUMNS)
SMALL = st.none() | st.integers(-1, 1)
ROWS: st.SearchStrategy[Row] = st.tuples(SMALL, st.integers(0, 3), st.sampled_from([None, "", "x"]), SMALL)
KV_FORMATS = st.sampled_from(list(KvFormat))


@dataclass(frozen=True)
class Stored:
    schema_id: int
    row: Row

    @property
    def padded(self) -> Row:
        return self.row + (None,) * (WIDTH - len(self.row))


STORED = st.builds(
    lambda schema_id, row: Stored(schema_id, row[:3] if schema_id == OLDER else row),
    st.sampled_from([OLDER, NEWER]),
    ROWS,
)


@dataclass
class Model:
    """The table as users see it, by the rules as they are written down."""

    rules: MergeRules
    targets: Sequence[int]
    table: dict[int, Stored]
    changes: list[tuple[int, Stored]] = field(default_factory=list)
    changed: dict[int, Stored | None] = field(default_factory=dict)

    def apply(self, key: int, new: Stored | None) -> None:
        old = self.table.get(key)
        if new is None:
            if old is not None and self.rules.deletes is DeleteBehavior.ALLOW:
                self._leave(key, old, self._deleted(old), known=True)
            return
        whole = not self.targets or set(self.targets) == set(range(WIDTH))
        known = not (self.rules.image is WAL and self.rules.engine is None and whole)
        if old is None:
            self._leave(key, None, new if whole else self._merged(Stored(NEWER, (None,) * WIDTH), new), known)
        elif self.rules.engine is FIRST_ROW:
            return
        elif self.rules.engine is VERSIONED:
            if self._version(new) >= self._version(old):
                self._leave(key, old, new, known)
        elif whole:
            self._leave(key, old, new, known)
        elif list(self.targets) != [KEY]:
            self._leave(key, old, self._merged(old, new), known)

    def _merged(self, old: Stored, new: Stored) -> Stored:
        pairs = zip(old.padded, new.padded, strict=True)
        return Stored(NEWER, tuple(pair[i in self.targets] for i, pair in enumerate(pairs)))

    def _deleted(self, old: Stored) -> Stored | None:
        if not self.targets or all(value is None for i, value in enumerate(old.padded) if i not in self.targets):
            return None
        return Stored(
            NEWER, tuple(None if i in self.targets and i != KEY else value for i, value in enumerate(old.padded))
        )

    def _version(self, stored: Stored) -> int:
        version = stored.padded[0]
        return -(1 << 31) if version is None else version

    def _leave(self, key: int, old: Stored | None, new: Stored | None, known: bool) -> None:
        if new is None:
            assert old is not None
            self.changes.append((DELETE, old))
            del self.table[key]
        else:
            if old is None and known:
                self.changes.append((INSERT, new))
            else:
                if self.rules.image is FULL:
                    assert old is not None
                    self.changes.append((BEFORE, old))
                self.changes.append((AFTER, new))
            self.table[key] = new
        self.changed[key] = new


class Bench:
    """Rows and values of the table of the tests."""

    def __init__(self, kv_format: KvFormat = KvFormat.COMPACTED) -> None:
        self.codecs = {
            schema_id: ValueCodec({number: SCHEMAS[number] for number in SCHEMAS if number <= schema_id}, kv_format)
            for schema_id in SCHEMAS
        }
        self.codec = self.codecs[NEWER]

    def value(self, stored: Stored | None) -> bytes | None:
        if stored is None:
            return None
        codec = self.codecs[stored.schema_id]
        return codec.encode(batch_of(codec.schema.columns, [stored.row]))[0]

    def records(self, batch: list[tuple[int, Stored | None]]) -> KvRecords:
        return KvRecords([key_of(key) for key, _ in batch], [self.value(new) for _, new in batch])

    def check(self, model: Model, batch: list[tuple[int, Stored | None]]) -> FoldedPuts:
        """Fold a batch and compare; the model then has it too."""
        folder = Folder(model.rules, self.codec)
        records = self.records(batch)
        table = {key_of(key): self.value(stored) for key, stored in model.table.items()}
        keys = folder.keys_to_read(records, model.targets)
        assert len(keys) == len(set(keys))
        old = {key: table.get(key) for key in keys}
        unchanged = dict(old)
        changes = folder.fold(records, old, model.targets)
        assert old == unchanged
        for key, new in batch:
            model.apply(key, new)
        assert list(changes.change_types) == [change for change, _ in model.changes]
        assert changes.keys == [key_of(stored.row[KEY]) for _, stored in model.changes]
        assert to_tuples(changes.rows) == [stored.padded for _, stored in model.changes]
        assert changes.rows.schema == self.codec.arrow_schema
        assert changes.state == {key_of(key): self.value(stored) for key, stored in model.changed.items()}
        return changes


def key_of(key: int) -> bytes:
    return bytes([key])


def with_key(key: int, stored: Stored) -> Stored:
    return Stored(stored.schema_id, (*stored.row[:KEY], key, *stored.row[KEY + 1 :]))


@st.composite
def tables_and_batches(draw: st.DrawFn) -> tuple[dict[int, Stored], list[tuple[int, Stored | None]]]:
    table = {stored.row[KEY]: stored for stored in draw(st.lists(STORED, max_size=4))}
    schema_id = draw(st.sampled_from([OLDER, NEWER]))  # one for the whole batch
    batch: list[tuple[int, Stored | None]] = []
    for row, is_delete in draw(st.lists(st.tuples(ROWS, st.booleans()), max_size=12)):
        new = Stored(schema_id, row[:3] if schema_id == OLDER else row)
        batch.append((row[KEY], None if is_delete else new))
    return table, batch


IMAGES = st.sampled_from(list(ChangelogImage))
WHOLE_ROW_ENGINES = st.sampled_from([FIRST_ROW, VERSIONED])
TARGETS = st.sets(st.integers(0, WIDTH - 1)).map(lambda chosen: sorted({*chosen, KEY}))


@given(content=tables_and_batches(), image=IMAGES, behavior=st.sampled_from([None, "ALLOW", "IGNORE"]), kv=KV_FORMATS)
def test_default_engine(content: Any, image: ChangelogImage, behavior: str | None, kv: KvFormat) -> None:
    table, batch = content
    rules = MergeRules(image=image, delete_behavior=None if behavior is None else DeleteBehavior(behavior))
    Bench(kv).check(Model(rules, (), table), batch)


@given(content=tables_and_batches(), image=IMAGES, engine=WHOLE_ROW_ENGINES, kv=KV_FORMATS)
def test_first_row_and_versioned(content: Any, image: ChangelogImage, engine: MergeEngine, kv: KvFormat) -> None:
    table, batch = content
    Bench(kv).check(Model(MergeRules(engine, "a", image=image), (), table), batch)


@given(content=tables_and_batches(), image=IMAGES, targets=TARGETS, ignore=st.booleans(), kv=KV_FORMATS)
def test_partial_update(content: Any, image: ChangelogImage, targets: list[int], ignore: bool, kv: KvFormat) -> None:
    table, batch = content
    rules = MergeRules(image=image, delete_behavior=DeleteBehavior.IGNORE if ignore else None)
    Bench(kv).check(Model(rules, targets, table), batch)


def _fold(
    rules: MergeRules, old: dict[int, Row], batch: list[tuple[int, Row | None]], targets: Sequence[int] = ()
) -> list[tuple[int, Row]]:
    bench = Bench()
    model = Model(rules, targets, {key: Stored(NEWER, row) for key, row in old.items()})
    changes = bench.check(model, [(key, None if row is None else Stored(NEWER, row)) for key, row in batch])
    return list(zip(changes.change_types, to_tuples(changes.rows), strict=True))


X, Y, Z = (1, 1, "x", 1), (2, 1, "y", 2), (None, 1, "z", None)


def test_later_records_see_earlier_ones() -> None:
    batch: list[tuple[int, Row | None]] = [(1, X), (1, Y), (1, None), (1, None), (1, X)]
    full = [(INSERT, X), (BEFORE, X), (AFTER, Y), (DELETE, Y), (INSERT, X)]
    assert _fold(MergeRules(), {}, batch) == full
    assert _fold(MergeRules(image=WAL), {}, batch) == [(AFTER, X), (AFTER, Y), (DELETE, Y), (AFTER, X)]


def test_identical_update_and_missing_key() -> None:
    assert _fold(MergeRules(), {1: X}, [(1, X)]) == [(BEFORE, X), (AFTER, X)]
    assert _fold(MergeRules(), {}, [(1, None)]) == []
    nothing = Bench().check(Model(MergeRules(), (), {}), [])
    assert (nothing.change_types, nothing.keys, nothing.rows.num_rows, nothing.state) == (b"", [], 0, {})


def test_first_row_keeps_the_first() -> None:
    assert _fold(MergeRules(FIRST_ROW), {}, [(1, X), (1, Y), (1, None)]) == [(INSERT, X)]
    assert _fold(MergeRules(FIRST_ROW, image=WAL), {1: X}, [(1, Y)]) == []


def test_versions_that_are_equal_replace_and_null_is_smallest() -> None:
    rules = MergeRules(VERSIONED, "a")
    assert _fold(rules, {1: X}, [(1, X), (1, Z), (1, Y), (1, X)]) == [(BEFORE, X), (AFTER, X), (BEFORE, X), (AFTER, Y)]
    assert _fold(rules, {1: Z}, [(1, Z)]) == [(BEFORE, Z), (AFTER, Z)]
    assert _fold(MergeRules(VERSIONED, "a", image=WAL), {}, [(1, Y), (1, X)]) == [(INSERT, Y)]
    lowest = (-(1 << 31), 1, None, None)
    assert _fold(rules, {1: lowest}, [(1, Z)]) == [(BEFORE, lowest), (AFTER, Z)]


def test_partial_update_keeps_other_columns() -> None:
    merged = (2, 1, "x", 1)
    assert _fold(MergeRules(), {1: X}, [(1, Y)], [0, 1]) == [(BEFORE, X), (AFTER, merged)]
    assert _fold(MergeRules(image=WAL), {}, [(1, Y)], [0, 1]) == [(INSERT, (2, 1, None, None))]
    assert _fold(MergeRules(image=WAL), {1: X}, [(1, Y)], [0, 1]) == [(AFTER, merged)]
    assert _fold(MergeRules(), {1: X}, [(1, Y)], [1]) == []
    assert _fold(MergeRules(image=WAL), {1: X}, [(1, Y)], [3, 2, 1, 0]) == [(AFTER, Y)]


def test_partial_delete_clears_its_columns_or_removes_the_row() -> None:
    left = (1, 1, None, None)
    assert _fold(MergeRules(), {1: X}, [(1, None)], [1, 2, 3]) == [(BEFORE, X), (AFTER, left)]
    assert _fold(MergeRules(), {1: X}, [(1, None)], [1]) == [(BEFORE, X), (AFTER, X)]
    only = (5, 1, None, None)
    batch: list[tuple[int, Row | None]] = [(1, None), (1, None), (1, Y)]
    assert _fold(MergeRules(), {1: only}, batch, [0, 1]) == [(DELETE, only), (INSERT, (2, 1, None, None))]


def test_keys_to_read() -> None:
    bench = Bench()
    records = bench.records([(1, Stored(NEWER, X)), (2, None), (1, None), (3, Stored(NEWER, X)), (2, None)])
    keys = {image: Folder(MergeRules(image=image), bench.codec).keys_to_read(records) for image in (FULL, WAL)}
    assert keys == {FULL: [b"\1", b"\2", b"\3"], WAL: [b"\2", b"\1"]}
    assert Folder(MergeRules(image=WAL), bench.codec).keys_to_read(records, [KEY]) == keys[FULL]


def test_deletes_where_they_are_disabled() -> None:
    for engine in (None, FIRST_ROW, VERSIONED):
        bench = Bench()
        folder = Folder(MergeRules(engine, "a", DeleteBehavior.DISABLE), bench.codec)
        with pytest.raises(InvalidRequestError, match=r"takes no deletes: its table\.delete\.behavior") as caught:
            folder.fold(bench.records([(1, Stored(NEWER, X)), (1, None)]), {})
        assert caught.value.error_code == 57
        assert folder.fold(bench.records([(1, Stored(NEWER, X))]), {}).change_types == bytes([INSERT])


@pytest.mark.parametrize("engine", [FIRST_ROW, VERSIONED])
def test_engines_that_take_whole_rows_and_no_deletes(engine: MergeEngine) -> None:
    with pytest.raises(InvalidRequestError, match="has no deletes: set"):
        MergeRules(engine, "a", DeleteBehavior.ALLOW)
    bench = Bench()
    for targets in ([1], [0, 1, 2, 3]):
        with pytest.raises(InvalidRequestError, match="takes whole rows only") as caught:
            Folder(MergeRules(engine, "a"), bench.codec).fold(bench.records([(1, Stored(NEWER, X))]), {}, targets)
        assert caught.value.error_code == -1


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({0}, "the key column 'id' must be among the target columns"),
        ({0, 1, 4}, "there is no column 4; the table has 4"),
        ({-1, 1}, "there is no column -1"),
    ],
)
def test_target_columns_that_can_not_be(targets: set[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        Folder(MergeRules(), Bench().codec).fold(KvRecords([], []), {}, sorted(targets))
    assert caught.value.error_code == 35
    strict = Schema.of([*COLUMNS, Column("n", DataTypes.int().not_null())], ["id"])
    with pytest.raises(InvalidRequestError, match="the column 'n' is NOT NULL"):
        check_target_columns(strict, {1, 4})


def test_version_columns_that_can_not_be() -> None:
    for name, message in (("b", "'b' is string; use INT"), ("d", "'d' is not among the columns")):
        with pytest.raises(InvalidRequestError, match=f"The version column {message}"):
            Folder(MergeRules(VERSIONED, name), Bench().codec)
    for data_type in (DataTypes.int(), DataTypes.bigint(), DataTypes.timestamp(3), DataTypes.timestamp_ltz(9)):
        check_version_column(Schema.of([Column("v", data_type)]), "v")


@pytest.mark.parametrize("zone", [None, UTC])
@pytest.mark.parametrize("precision", [0, 3, 6, 9])
def test_timestamps_as_versions(precision: int, zone: Any) -> None:
    data_type: DataType = DataTypes.timestamp(precision) if zone is None else DataTypes.timestamp_ltz(precision)
    columns = [Column("id", DataTypes.int()), Column("v", data_type)]
    codec = ValueCodec({1: Schema.of(columns, ["id"])})
    folder = Folder(MergeRules(VERSIONED, "v"), codec)
    now = datetime(1969, 12, 31, 23, 59, 59, tzinfo=zone)
    rows = [(1, None), (1, now), (1, now - timedelta(seconds=1)), (1, now + timedelta(seconds=2))]
    values = codec.encode(batch_of(columns, rows))
    changes = folder.fold(KvRecords([b"\1"] * 4, values), {})
    assert list(changes.change_types) == [INSERT, BEFORE, AFTER, BEFORE, AFTER]
    assert changes.state == {b"\1": values[3]}


def test_rows_that_are_none_are_found_before_anything_is_merged() -> None:
    codec = Bench().codec
    broken = KvRecords([b"\1"], [b"\4\0\0"])
    for folder, targets in ((Folder(MergeRules(), codec), [0, 1]), (Folder(MergeRules(VERSIONED, "a"), codec), [])):
        with pytest.raises(CorruptDataError):
            folder.fold(broken, {}, targets)


ITEMS = st.sampled_from([b"a", b"b", b"c"])
VERSIONS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 2)


@needs_both
@given(
    batch=st.lists(st.tuples(ITEMS, st.none() | ITEMS, VERSIONS)),
    old=st.dictionaries(ITEMS, st.none() | ITEMS),
    image=st.sampled_from([(True, True), (False, True), (False, False)]),
    keep=st.booleans(),
    versioned=st.booleans(),
)
def test_kernels_agree(
    batch: list[tuple[bytes, bytes | None, int]],
    old: dict[bytes, bytes | None],
    image: tuple[bool, bool],
    keep: bool,
    versioned: bool,
) -> None:
    keys, values, versions = ([record[i] for record in batch] for i in range(3))

    def fold(module: Any, count: int) -> Any:
        old_versions = dict.fromkeys(old, 1)
        numbers = versions[:count] if versioned else None
        folded = module.fold_changes(keys, values[:count], old, *image, keep, numbers, old_versions)
        return *folded, old_versions

    one, two = in_both_modes(lambda k: fold(k, len(batch)))
    assert one == two
    assert one[0] == "returned"
    if batch:
        one, two = in_both_modes(lambda k: fold(k, len(batch) - 1))
        assert one == two
        assert one[0] == "ValueError"


@pytest.mark.parametrize("rules", [MergeRules(), MergeRules(MergeEngine.AGGREGATION), MergeRules(VERSIONED, "v")])
def test_not_null_columns(rules: MergeRules) -> None:
    columns = [Column("id", DataTypes.int()), Column("v", DataTypes.int())]
    (value,) = ValueCodec({1: Schema.of(columns, ["id"])}).encode(batch_of(columns, [(1, None)]))
    strict = ValueCodec({1: Schema.of([columns[0], Column("v", DataTypes.int().not_null())], ["id"])})
    with pytest.raises(
        CorruptDataError, match="The column 'v' is NOT NULL and null in a row; give it a value"
    ) as caught:
        Folder(rules, strict).fold(KvRecords([b"\1"], [value]), {})
    assert caught.value.error_code == 35


def test_changes_that_are_too_large() -> None:
    columns = [Column("id", DataTypes.int()), Column("b", DataTypes.string())]
    codec = ValueCodec({1: Schema.of(columns, ["id"])})
    (large,) = codec.encode(batch_of(columns, [(1, "x" * (CHANGES_SIZE_MAX_BYTES // 100))]))
    records = KvRecords([b"\1"] * 51, [large] * 51)
    with pytest.raises(InvalidRequestError, match="write fewer rows at a time") as caught:
        Folder(MergeRules(), codec).fold(records, {})
    assert caught.value.error_code == 13


@pytest.mark.parametrize("targets", [(), (0, 1)])
def test_rows_of_nulls_count_by_their_width(targets: tuple[int, ...]) -> None:
    """A null takes a bit in a row and eight bytes in Arrow: these 8 MB would take 512 MB and more."""
    columns = [Column("id", DataTypes.int()), *(Column(f"c{number}", DataTypes.bigint()) for number in range(1_000))]
    codec = ValueCodec({1: Schema.of(columns, ["id"])})
    (value,) = codec.encode(batch_of(columns, [(1, *[None] * 1_000)]))
    assert value is not None
    count = 2 * CHANGES_SIZE_MAX_BYTES // codec.row_width_bytes
    assert count * len(value) < 10_000_000
    keys = [number.to_bytes(4, "big") for number in range(count)]
    with pytest.raises(InvalidRequestError, match="write fewer rows at a time"):
        Folder(MergeRules(), codec).fold(KvRecords(keys, [value] * count), {}, targets)
