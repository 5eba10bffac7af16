"""The command `fluss dump-log`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluss.cli.text.output import limit_option, output_option

if TYPE_CHECKING:
    from fluss.model.errors import CorruptDataError
    from fluss.storage.damage.log_dump import DumpedBatch


@click.command(name="dump-log")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--rows", is_flag=True, help="Print rows; the file must lie in its data directory.")
@click.option("--from", "from_offset", type=click.IntRange(0), default=0, metavar="OFFSET", help="Begin there.")
@limit_option
@output_option
def dump_log(path: Path, rows: bool, from_offset: int, limit: int | None, output: str) -> None:
    """Print the batches of a log file, or of all log files in a bucket's directory.

    A damaged batch ends the list, and the command with exit code 1. The server may be running; what it is writing at
    this moment may then look damaged.

    \b
    Examples:
      fluss dump-log fluss-data/tables/0/0
      fluss dump-log --rows --from 1000 --limit 20 fluss-data/tables/0/0/00000000000000000000.log
    """
    from fluss.cli.text.output import write_batches
    from fluss.storage.damage.log_dump import RowReader, batches, headers, headers_schema

    found = _UntilDamage(batches(path, from_offset))
    if rows:
        reader = RowReader(path)
        good = (batch for batch in found if batch.problem is None)
        tables = (_from_offset(reader.rows(batch), batch, from_offset) for batch in good)
        write_batches(reader.schema, tables, output, limit=limit, count_rest=False)
    else:
        write_batches(headers_schema(), headers(iter(found)), output, limit=limit, count_rest=False)
    if found.damage is not None:
        raise found.damage


class _UntilDamage:
    """Batches up to the first that is damaged, which is kept for the end."""

    def __init__(self, found: Iterator[DumpedBatch]) -> None:
        self._found = found
        self.damage: CorruptDataError | None = None

    def __iter__(self) -> Iterator[DumpedBatch]:
        from fluss.storage.log.walk import CorruptBatchError

        try:
            for batch in self._found:
                if batch.problem is not None:
                    self.damage = CorruptBatchError(batch.path, batch.position, batch.problem)
                yield batch
        except CorruptBatchError as error:
            self.damage = error


def _from_offset(rows: object, batch: DumpedBatch, from_offset: int) -> object:
    return rows.slice(max(0, from_offset - batch.header.base_offset))  # type: ignore[attr-defined]
