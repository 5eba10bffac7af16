"""The commands that read rows, `fluss scan`, `tail` and `changes`, and options that all reading commands share."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import check_columns, open_table, partitions, split_columns
from fluss.cli.text.output import limit_option, output_option, printing, write_batches
from fluss.doors import clock
from fluss.model.clock import wall_clock_ms
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.offsets import OffsetSpec
from fluss.model.tables.options import duration_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import Changes, FlussConnection, FlussTable, LogScanner, PartitionInfo, TableBucket, TableScan


Function = TypeVar("Function", bound=Callable[..., Any])


def reading_options(command: Function) -> Function:
    """Add --columns, --filter and --partition; the command gets `columns`, `filter` and `partition`."""
    command = click.option(
        "--partition", multiple=True, metavar="NAME", help="Read this partition only; may be repeated."
    )(command)
    command = click.option("--filter", metavar="SQL", help="Rows to read: \"id > 5 and name like 'a%'\".")(command)
    return click.option("--columns", callback=split_columns, metavar="A,B,...", help="Columns to read.")(command)


def chosen(table: FlussTable, columns: list[str] | None, filter: str | None) -> TableScan:
    """A scan of the columns and rows that were asked for."""
    scan = table.new_scan()
    if columns is not None:
        scan = scan.project_by_name(check_columns(table, columns))
    if filter is not None:
        from fluss.model.forms.predicate_text import parse_predicate

        scan = scan.filter(parse_predicate(filter, table.get_table_info().schema))
    return scan


def projected(table: FlussTable, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns, all of which the table has."""
    import pyarrow as pa

    return pa.schema([table.arrow_schema.field(name) for name in check_columns(table, columns)])


def partition_ids(table: FlussTable, found: Sequence[PartitionInfo]) -> list[int | None]:
    """Ids for `bucket_offsets`: of partitions, or None for a table that has none."""
    return [item.partition_id for item in found] if table.get_table_info().is_partitioned() else [None]


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a time: `2026-01-31 12:30` (UTC, if it names no zone), or `10min` ago."""
    ago_ms = duration_ms(text) if not text.isdigit() else None
    if ago_ms is not None:
        return wall_clock_ms() - ago_ms
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    except ValueError:
        raise FlussError(f"{text!r} is not a time like '2026-01-31 12:30', nor a duration like 10min.") from None


def start_of(text: str) -> OffsetSpec | int:
    """The start that a user names: earliest, latest, an offset, or a time."""
    if text in ("earliest", "latest"):
        return OffsetSpec.earliest() if text == "earliest" else OffsetSpec.latest()
    return int(text) if text.isdigit() else OffsetSpec.timestamp(moment_ms(text))


@click.command()
@click.argument("table")
@reading_options
@limit_option
@connection_options
@output_option
def scan(
    table: str,
    columns: list[str] | None,
    filter: str | None,
    partition: tuple[str, ...],
    limit: int | None,
    settings: Config,
    output: str,
) -> None:
    """Print the rows of a table as they are now.

    Of a primary-key table these are the current rows, of a log table all rows that are kept.

    \b
    Examples:
      fluss scan shop.orders --filter "total > 100 and region = 'EU'" --columns id,total
      fluss scan shop.orders -o csv > orders.csv
    """
    with connected(settings) as connection:
        opened = open_table(connection, table)
        plan = chosen(opened, columns, filter)
        schema = opened.arrow_schema if columns is None else projected(opened, columns)
        ids = partition_ids(opened, partitions(connection, opened, partition))
        total = None if filter or output != "table" else _row_count(connection, opened, plan, ids, bool(partition))
        write_batches(schema, _batches(opened, plan, ids), output, limit=limit, total=total, count_rest=False)


def _batches(table: FlussTable, plan: TableScan, ids: list[int | None]) -> Iterator[pa.RecordBatch]:
    """Bucket by bucket, in bounded memory; ends are those of the first moment."""
    ends = plan.bucket_offsets(OffsetSpec.latest(), ids)
    if table.has_primary_key():
        for bucket in ends:
            yield from plan.read_bucket_at(bucket, None)
        return
    starts = plan.bucket_offsets(OffsetSpec.earliest(), ids)
    for bucket, end in ends.items():
        yield from plan.read_bucket(bucket, starts.get(bucket, end), end)


def _row_count(
    connection: FlussConnection, table: FlussTable, plan: TableScan, ids: list[int | None], some: bool
) -> int | None:
    """How many rows there are, if that is known without reading them."""
    if not table.has_primary_key():
        ends, starts = (plan.bucket_offsets(spec, ids) for spec in (OffsetSpec.latest(), OffsetSpec.earliest()))
        return sum(end - starts.get(bucket, end) for bucket, end in ends.items())
    if some:
        return None
    try:
        return connection.get_admin().get_table_stats(table.table_path).row_count
    except FlussError:
        return None


LAST_ROWS_DEFAULT: Final = 10
LAST_ROWS_MAX: Final = 1_000_000
_POLL_MS: Final = 1_000
_PARTITIONS_S: Final = 5.0
CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP = "_change_type", "_log_offset", "_commit_timestamp"
_NO_FOLLOW = click.option("--no-follow", is_flag=True, help="End with the last row there is.")
_LIMIT_HELP: Final = "End after so many rows."


@click.command()
@click.argument("table")
@click.option(
    "-n", "last", type=click.IntRange(0, LAST_ROWS_MAX), metavar="N", help="Begin with the last N rows.  [default: 10]"
)
@click.option("--from", "start", metavar="WHERE", help="earliest, latest, an offset, a time, or 10min ago.")
@_NO_FOLLOW
@click.option("--limit", type=click.IntRange(1), metavar="N", help=_LIMIT_HELP)
@reading_options
@connection_options
@output_option
def tail(
    table: str,
    last: int | None,
    start: str | None,
    no_follow: bool,
    limit: int | None,
    columns: list[str] | None,
    filter: str | None,
    partition: tuple[str, ...],
    settings: Config,
    output: str,
) -> None:
    """Print the last rows of a table, and then those that come, until Ctrl-C.

    Of a primary-key table these are its changes, with their type in front. -n counts rows before the filter.

    \b
    Examples:
      fluss tail shop.orders --columns id,total --filter "total > 100"
      fluss tail shop.orders --from 10min --no-follow -o json
    """
    if last is not None and start is not None:
        raise click.UsageError("Give -n or --from, not both.")
    with connected(settings) as connection:
        opened = open_table(connection, table)
        following = _Tail(connection, opened, chosen(opened, columns, filter), partition)
        if start is None:
            rows: Iterable[pa.RecordBatch] = following.last_rows(LAST_ROWS_DEFAULT if last is None else last)
        else:
            rows = following.rows(following.starts(start))
        if not no_follow:
            rows = itertools.chain(rows, following.follow())
        _print(following.shown(rows), following.schema, output, limit, follow=not no_follow)


def _print(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, output: str, limit: int | None, *, follow: bool
) -> None:
    """Batches that are followed are seen at once."""
    left = limit
    with printing(schema, output, roomy=follow) as printer:
        for batch in batches:
            part = batch if left is None else batch.slice(0, left)
            if part.num_rows:
                printer.write(part)
                if follow:
                    printer.flush()
            if left is not None:
                left -= part.num_rows
                if not left:
                    break
        printer.flush()


class _Tail:
    """Rows up to now, and those behind them, of all partitions or of some."""

    def __init__(self, connection: FlussConnection, table: FlussTable, scan: TableScan, names: tuple[str, ...]) -> None:
        self._connection, self._table, self._scan, self._names = connection, table, scan, names
        self._ids = partition_ids(table, partitions(connection, table, names))
        self.ends = scan.bucket_offsets(OffsetSpec.latest(), self._ids)
        self._scanner: LogScanner = scan.create_changelog_batch_scanner()
        hidden = {LOG_OFFSET, COMMIT_TIMESTAMP} | (set() if table.has_primary_key() else {CHANGE_TYPE})
        self._changes_schema: pa.Schema = self._scanner.arrow_schema
        self._shown = [name for name in self._changes_schema.names if name not in hidden]

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([self._changes_schema.field(name) for name in self._shown])

    def shown(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(self._shown)

    def starts(self, text: str) -> dict[TableBucket, int]:
        """The offset at which each bucket begins, at the earliest the first one that is kept."""
        spec = start_of(text)
        earliest = self._scan.bucket_offsets(OffsetSpec.earliest(), self._ids)
        found = dict.fromkeys(self.ends, spec) if isinstance(spec, int) else self._scan.bucket_offsets(spec, self._ids)
        return {bucket: max(found.get(bucket, end), earliest.get(bucket, 0)) for bucket, end in self.ends.items()}

    def rows(self, starts: dict[TableBucket, int]) -> Iterator[pa.RecordBatch]:
        """All rows up to now."""
        for bucket, end in self.ends.items():
            if starts[bucket] < end:
                yield from self._scan.read_bucket(bucket, starts[bucket], end, changelog=True)

    def last_rows(self, count: int) -> list[pa.RecordBatch]:
        """The last rows of all buckets, by the time at which they were stored."""
        import pyarrow as pa

        if not count:
            return []
        earliest = self._scan.bucket_offsets(OffsetSpec.earliest(), self._ids)
        starts = {bucket: max(end - count, earliest.get(bucket, 0)) for bucket, end in self.ends.items()}
        found = pa.Table.from_batches(list(self.rows(starts)), self._changes_schema)
        ordered = found.sort_by([(COMMIT_TIMESTAMP, "ascending"), (LOG_OFFSET, "ascending")])
        return list(ordered.slice(max(0, ordered.num_rows - count)).to_batches())

    def follow(self) -> Iterator[pa.RecordBatch]:
        """Rows from now on; partitions come and go."""
        scanner = self._scanner
        watched = self._table.get_table_info().is_partitioned() and not self._names
        if self.ends:
            scanner.subscribe_positions(self.ends)
        looked_s = clock.monotonic()
        while True:
            try:
                if scanner.positions():
                    yield from scanner.poll_arrow(_POLL_MS).to_batches()
                else:
                    clock.sleep(_POLL_MS / 1000)
            except FlussError:
                if not watched or not self._update_partitions():
                    raise
            if watched and clock.monotonic() - looked_s > _PARTITIONS_S:
                self._update_partitions()
                looked_s = clock.monotonic()

    def _update_partitions(self) -> bool:
        """Read partitions that are new, and leave those that are gone; whether there were any."""
        ids = partition_ids(self._table, partitions(self._connection, self._table))
        new, gone = set(ids) - set(self._ids), set(self._ids) - set(ids)
        for bucket in list(self._scanner.positions()):
            if bucket.partition_id in gone and bucket.partition_id is not None:
                self._scanner.unsubscribe_partition(bucket.partition_id, bucket.bucket)
        if new:
            self._scanner.subscribe_positions(self._scan.bucket_offsets(OffsetSpec.earliest(), list(new)))
        self._ids = ids
        return bool(new or gone)


@click.command()
@click.argument("table")
@click.option(
    "--from",
    "start",
    type=click.Choice(("snapshot", "earliest", "latest")),
    default="snapshot",
    help="Begin with the current rows, with the first change that is kept, or with the next one.  [default: snapshot]",
)
@_NO_FOLLOW
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help=_LIMIT_HELP)
@click.option("--columns", callback=split_columns, metavar="A,B,...", help="Columns to print.")
@connection_options
@output_option
def changes(
    table: str,
    start: str,
    no_follow: bool,
    limit: int | None,
    columns: list[str] | None,
    settings: Config,
    output: str,
) -> None:
    """Print a table's changes with type, offset and time, until Ctrl-C.

    Types are +I for a new row, -U and +U for a row before and after an update, -D for one that was deleted, and +A in
    tables without a primary key. Rows that were there at the beginning come as +I without a time.

    \b
    Examples:
      fluss changes shop.customers
      fluss changes shop.customers --from earliest --no-follow -o json
    """
    import pyarrow as pa

    with connected(settings) as connection:
        opened = open_table(connection, table)
        names = check_columns(opened, columns or opened.arrow_schema.names)
        ids = partition_ids(opened, partitions(connection, opened))
        ends = opened.new_scan().bucket_offsets(OffsetSpec.latest(), ids) if no_follow else None
        with opened.changes(start) as reader:
            shown = [CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP, *names]
            schema = pa.schema([reader.arrow_schema.field(name) for name in shown])
            _print(_polled(reader, shown, ends), schema, output, limit, follow=not no_follow)


def _polled(reader: Changes, names: list[str], ends: dict[TableBucket, int] | None) -> Iterator[pa.RecordBatch]:
    """Changes without end, or up to these offsets."""
    while True:
        if ends is not None and _reached(reader, ends):
            return
        yield from reader.poll(_POLL_MS).select(names).to_batches()


def _reached(reader: Changes, ends: dict[TableBucket, int]) -> bool:
    here = {item.bucket: item for item in reader.position.buckets}
    for bucket, end in ends.items():
        item = here.get(bucket)
        # A bucket that is not there was of a partition that is gone.
        if item is not None and (item.offset is None or item.after_key is not None or item.offset < end):
            return False
    return True
