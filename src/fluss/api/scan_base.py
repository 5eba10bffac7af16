"""What the scan builders of all facades share: which rows and columns are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fluss.api.union import UnionRows, union_read
from fluss.client.limit_scan import LimitScanCore
from fluss.client.runtime import run
from fluss.client.scanner import LogScannerCore
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError
from fluss.model.html import html_facts, html_table
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
    """Chooses columns and rows, and makes scanners. Each call returns a new builder."""

    def __init__(self, core: TableCore, options: _Options = _DEFAULTS) -> None:
        self._core = core
        self._options = options

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._core, replace(self._options, **changes))

    def project(self, indices: list[int]) -> Self:
        """Read only these columns, by index, in this order."""
        count = len(self._core.info.schema.columns)
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < count:
                raise InvalidRequestError(f"Column index {index!r} is not in the range 0 to {count - 1}.")
        if not indices or len(set(indices)) != len(indices):
            raise InvalidRequestError(f"A projection names each column once and at least one, not {indices}.")
        return self._with(projection=tuple(indices))

    def project_by_name(self, names: list[str]) -> Self:
        """Read only these columns, by name, in this order."""
        known = self._core.info.schema.column_names
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"No column {name!r} in {self._core.info.table_path}; it has {known}.")
        return self.project([known.index(name) for name in names])

    def with_fixed_schema(self, fixed_schema: bool) -> Self:
        """Whether batches written with another schema are padded or cut to the table's schema as it is now (default).

        Without, they keep the columns they were written with. A projection always fixes the schema.
        """
        return self._with(fixed_schema=bool(fixed_schema))

    def filter(self, predicate: Predicate) -> Self:
        """Read only rows that match: `filter((col("id") >= 200) & col("name").starts_with("h"))`.

        The server leaves out batches where it can, and the rest is filtered here, so exactly the matching rows come.
        (pyfluss returns whole batches and leaves this second step to its caller.) A second filter narrows the first.

        In a changelog each change is judged by its own row: when an update takes a row out of what matches, its `-U`
        comes alone, and its `+U` when it brings one in. A whole-table read judges current rows.
        """
        self._core.scan_filter(predicate)  # raises when it does not fit the table
        given = self._options.predicate
        return self._with(predicate=predicate if given is None else given & predicate)

    def limit(self, n: int) -> Self:
        """Read at most `n` rows of a bucket, with `create_bucket_batch_scanner`.

        They are the last ones of a log table, and the first ones by key of a primary-key table.
        """
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= LIMIT_MAX:
            raise InvalidRequestError(f"A limit is a number from 1 to {LIMIT_MAX}, not {n!r}.")
        return self._with(limit=n)

    def read_bucket(
        self, bucket: TableBucket, start_offset: int, end_offset: int, *, changelog: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one bucket from an offset up to, not including, another, batch by batch in bounded memory.

        With `changelog`, batches have `_change_type`, `_log_offset` and `_commit_timestamp` in front; the log of a
        primary-key table is of changes. Its reads block, and may be made in any thread.
        """
        options = self._options
        self._check_no_limit("A read between offsets has all rows")
        return self._core.read_bucket(
            bucket, start_offset, end_offset, options.projection, options.predicate, changelog=changelog
        )

    def read_bucket_at(self, bucket: TableBucket, offset: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of one bucket of a primary-key table as they were at an offset of its changelog, batch by batch.

        The changelog between that offset and now must still be kept, with the rows as they were before each change.
        With None they are those of the moment at which the first batch is read.
        Its reads block, and may be made in any thread.
        """
        self._check_no_limit("A read at an offset has all rows")
        return self._core.read_bucket_at(bucket, offset, self._options.projection, self._options.predicate)

    def batch_starts(self, bucket: TableBucket, offsets: Sequence[int]) -> list[int]:
        """For each offset of a bucket where the batch that holds it begins; the offset itself where that is not told.

        Ranges that are cut there are read without decoding a batch twice.
        """
        return run(self._core.batch_starts(bucket, offsets))

    def bucket_offsets(self, spec: OffsetSpec, partition_ids: Sequence[int | None] = (None,)) -> dict[TableBucket, int]:
        """An offset for every bucket of the table, or of these partitions; those that are gone are left out."""
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
