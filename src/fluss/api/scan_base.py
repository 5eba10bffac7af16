"""The base of all facades' scan builders: which rows and columns are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fluss.api.union import UnionRows, union_read
from fluss.client.runtime import run
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.scan.table_read import LimitScanCore
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import html_facts, html_table
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Options:
    projection: tuple[int, ...] | None = None
    predicate: Predicate | None = None
    limit: int | None = None
    fixed_schema: bool = True


_DEFAULTS = _Options()


class TableScanBase:
    """Chooses columns and rows, and makes scanners. Obtain with `table.new_scan()`; each call returns a new builder.

    Examples:
        >>> clicks.new_scan().project_by_name(["url"]).filter(fluss.col("id") > 1)
        TableScan(shop.clicks, columns=[1], filter=...)
    """

    def __init__(self, core: TableCore, options: _Options = _DEFAULTS) -> None:
        self._core = core
        self._options = options

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._core, replace(self._options, **changes))

    def project(self, indices: list[int]) -> Self:
        """Read only some columns, by index.

        Args:
            indices: Indexes of columns, counted from 0, in the order wanted, each once.

        Returns:
            A new scan.

        Raises:
            InvalidRequestError: There is no such column, or one is named twice.

        Examples:
            >>> clicks.new_scan().project([1, 0])
            TableScan(shop.clicks, columns=[1, 0])
        """
        count = len(self._core.info.schema.columns)
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < count:
                raise InvalidRequestError(f"Column index {index!r} is not in the range 0 to {count - 1}.")
        if not indices or len(set(indices)) != len(indices):
            raise InvalidRequestError(f"A projection names each column once and at least one, not {indices}.")
        return self._with(projection=tuple(indices))

    def project_by_name(self, names: list[str]) -> Self:
        """Read only some columns, by name.

        Args:
            names: Names of columns in the order wanted, each once.

        Returns:
            A new scan.

        Raises:
            InvalidRequestError: There is no such column, or one is named twice.

        Examples:
            >>> clicks.new_scan().project_by_name(["url"])
            TableScan(shop.clicks, columns=[1])
        """
        known = self._core.info.schema.column_names
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"No column {name!r} in {self._core.info.table_path}; it has {known}.")
        return self.project([known.index(name) for name in names])

    def with_fixed_schema(self, fixed_schema: bool) -> Self:
        """Choose what becomes of batches that were written with another schema.

        Args:
            fixed_schema: True, the default: they are padded or cut to the table's schema as it is now. False: they keep
                the columns they were written with. A projection always fixes the schema.

        Returns:
            A new scan.

        Examples:
            >>> scan = clicks.new_scan().with_fixed_schema(False)
        """
        return self._with(fixed_schema=bool(fixed_schema))

    def filter(self, predicate: Predicate) -> Self:
        """Read only rows that match.

        The server leaves out batches where it can, and the rest is filtered here, so exactly the matching rows come.
        (pyfluss returns whole batches and leaves this second step to its caller.) In a changelog each change is judged
        by its own row: when an update takes a row out of what matches, its `-U` comes alone, and its `+U` when it
        brings one in. A whole-table read judges current rows.

        Args:
            predicate: Conditions on columns, joined with `&`, `|` and `~`. A second filter narrows the first.

        Returns:
            A new scan.

        Raises:
            SchemaMismatchError: A column does not exist, or a value does not fit its type.

        Examples:
            >>> scan = clicks.new_scan().filter((fluss.col("id") >= 2) & fluss.col("url").starts_with("/b"))
        """
        self._core.scan_filter(predicate)  # raises when it does not fit the table
        given = self._options.predicate
        return self._with(predicate=predicate if given is None else given & predicate)

    def limit(self, n: int) -> Self:
        """Read some rows: of the table with `to_arrow()`, of a bucket with `create_bucket_batch_scanner`.

        Args:
            n: How many at most. Those of a table are the first ones found, bucket by bucket. Those of a bucket are the
                last ones of a log table, and the first ones by key of a primary-key table.

        Returns:
            A new scan.

        Raises:
            InvalidRequestError: The number is below 1.

        Examples:
            >>> clicks.new_scan().limit(10)
            TableScan(shop.clicks, columns=all, limit=10)
        """
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= LIMIT_MAX:
            raise InvalidRequestError(f"A limit is a number from 1 to {LIMIT_MAX}, not {n!r}.")
        return self._with(limit=n)

    def read_bucket(
        self, bucket: TableBucket, start_offset: int, end_offset: int, *, changelog: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of one bucket between two offsets, batch by batch in bounded memory.

        Its reads block in all facades, and may be made in any thread.

        Args:
            bucket: The bucket.
            start_offset: Offset of the first row.
            end_offset: Offset behind the last row.
            changelog: Put `_change_type`, `_log_offset` and `_commit_timestamp` in front; the log of a primary-key
                table is of changes.

        Returns:
            Batches, read as they are asked for.

        Raises:
            InvalidRequestError: The bucket is not of this table, or the scan has a limit.

        Examples:
            >>> bucket = fluss.TableBucket(clicks.get_table_info().table_id, 0)
            >>> [batch.num_rows for batch in clicks.new_scan().read_bucket(bucket, 1, 3)]
            [2]
        """
        options = self._options
        self._check_no_limit("A read between offsets has all rows")
        return self._core.read_bucket(
            bucket, start_offset, end_offset, options.projection, options.predicate, changelog=changelog
        )

    def read_bucket_at(self, bucket: TableBucket, offset: int | None) -> Iterator[pa.RecordBatch]:
        """Read the rows of one bucket of a primary-key table as they were at an offset of its changelog.

        Batches are read as they are asked for; that blocks in all facades, and may be done in any thread. The changelog
        between that offset and now must still be kept, with the rows as they were before each change.

        Args:
            bucket: The bucket.
            offset: The offset. None: as of the moment at which the first batch is read.

        Returns:
            Batches, read as they are asked for.

        Raises:
            InvalidRequestError: The table has no primary key, or the scan has a limit.

        Examples:
            >>> bucket = fluss.TableBucket(users.get_table_info().table_id, 0)
            >>> [batch.num_rows for batch in users.new_scan().read_bucket_at(bucket, 1)]
            [1]
        """
        self._check_no_limit("A read at an offset has all rows")
        return self._core.read_bucket_at(bucket, offset, self._options.projection, self._options.predicate)

    def batch_starts(self, bucket: TableBucket, offsets: Sequence[int]) -> list[int]:
        """Find where the batches begin that hold some offsets.

        Ranges that are cut there are read without decoding a batch twice.

        Args:
            bucket: The bucket.
            offsets: Offsets in its log.

        Returns:
            For each offset where its batch begins; the offset itself where the server does not tell.

        Examples:
            >>> bucket = fluss.TableBucket(clicks.get_table_info().table_id, 0)
            >>> clicks.new_scan().batch_starts(bucket, [2])
            [0]
        """
        return run(self._core.batch_starts(bucket, offsets))

    def bucket_offsets(self, spec: OffsetSpec, partition_ids: Sequence[int | None] = (None,)) -> dict[TableBucket, int]:
        """Get an offset for every bucket of the table, or of some partitions. Blocks in all facades.

        Args:
            spec: `OffsetSpec.earliest()`, `.latest()` or `.timestamp(ms)`.
            partition_ids: Ids of partitions; of a table without partitions leave it out.

        Returns:
            Offsets by bucket. Partitions that are gone are left out.

        Examples:
            >>> list(clicks.new_scan().bucket_offsets(fluss.OffsetSpec.latest()).values())
            [3]
        """
        return run(self._core.bucket_offsets(partition_ids, spec))

    def _scanner(self, *, records: bool) -> LogScannerCore:
        options = self._options
        self._check_no_limit("A log scanner reads without end")
        if not records:
            self._core.check_batches("a batch scanner")
        return self._core.log_scanner(
            options.projection, options.predicate, fixed_schema=options.fixed_schema, records=records
        )

    def _changelog_scanner(self) -> LogScannerCore:
        options = self._options
        self._check_no_limit("A scanner of changes reads without end")
        return self._core.log_scanner(
            options.projection, options.predicate, fixed_schema=options.fixed_schema, changelog=True
        )

    def _check_no_limit(self, reason: str) -> None:
        if self._options.limit is not None:
            raise InvalidRequestError(
                f"{reason} and takes no limit ({self._options.limit} was given); use create_bucket_batch_scanner()."
            )

    async def _read(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        options = self._options
        self._check_no_limit("A whole-table read has all rows")
        if self._core.info.has_primary_key() and not options.fixed_schema:
            raise InvalidRequestError("Current rows have the table's schema: leave out with_fixed_schema(False).")
        return await self._core.read(options.projection, options.predicate, fixed_schema=options.fixed_schema)

    def _first_rows(self) -> pa.Table:
        """As many rows as the limit says; blocks."""
        import pyarrow as pa

        options, taken = self._options, []
        left = options.limit or 0
        batches = self._core.batches(options.projection, options.predicate)
        with closing(batches):
            for batch in batches:
                taken.append(batch.slice(0, left))
                left -= taken[-1].num_rows
                if not left:
                    break
        schema = self._core.arrow_schema
        fields = schema if options.projection is None else [schema.field(index) for index in options.projection]
        return pa.Table.from_batches(taken, pa.schema(fields))

    def _count(self) -> int:
        """How many rows match, at most as many as the limit says; blocks."""
        found = self._core.row_count(self._options.predicate)
        return found if self._options.limit is None else min(found, self._options.limit)

    def _union(self, warehouse: str | None, catalog: Mapping[str, str] | None, mode: str) -> UnionRows:
        options = self._options
        self._check_no_limit("A union read has all rows")
        if not options.fixed_schema:
            raise InvalidRequestError("A union read has the table's schema: leave out with_fixed_schema(False).")
        return union_read(self._core, options.projection, options.predicate, warehouse, catalog, mode)

    def _limit_scan(self, bucket: TableBucket) -> LimitScanCore:
        options = self._options
        if options.limit is None:
            raise InvalidRequestError("create_bucket_batch_scanner() needs a limit: use limit(n) first.")
        if options.predicate is not None:
            raise InvalidRequestError("A limit can't be combined with a filter; use a log scanner for the filter.")
        if not options.fixed_schema:
            raise InvalidRequestError("A limit scan returns one batch: leave out with_fixed_schema(False).")
        return self._core.limit_scan(bucket, options.limit, options.projection)

    def __repr__(self) -> str:
        options = self._options
        columns = "all" if options.projection is None else list(options.projection)
        narrowed = "" if options.predicate is None else f", filter={options.predicate!r}"
        limited = "" if options.limit is None else f", limit={options.limit}"
        return f"TableScan({self._core.info.table_path}, columns={columns}{narrowed}{limited})"

    def _repr_html_(self) -> str:
        options, info = self._options, self._core.info
        columns = info.schema.columns
        chosen = columns if options.projection is None else [columns[index] for index in options.projection]
        rows = [(column.name, column.data_type) for column in chosen]
        facts = {"filter": None if options.predicate is None else repr(options.predicate), "limit": options.limit}
        return html_table(f"Scan of {info.table_path}", ("column", "type"), rows) + html_facts(facts)
