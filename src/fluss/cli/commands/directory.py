"""The commands on data directories: `fluss backup`, `fluss restore`, `fluss repair` and `fluss dump-log`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.output import ByteBar, byte_bar, limit_option, output_option, size_text
from fluss.model.errors import FlussError

if TYPE_CHECKING:
    from fluss.api.operations import BackupStatus
    from fluss.model.config import Config
    from fluss.model.errors import CorruptDataError
    from fluss.storage.damage.log_dump import DumpedBatch
    from fluss.storage.damage.survey import Damage, Survey


@click.command()
@connection_options
@click.argument("directory", type=click.Path(path_type=Path))
def backup(settings: Config, directory: Path) -> None:
    """Copy all data of a running server to DIRECTORY, as of one moment.

    The server writes the copy itself, so DIRECTORY is a path on its machine, new or empty. Writers and readers go on
    meanwhile. On the same file system files that never change are shared by hard links, which is quick but no help
    against a broken disk: copy the backup to another one. It needs a Flussbett server.

    \b
    Examples:
      fluss backup /var/backups/fluss-monday
      fluss backup --bootstrap file:///home/me/data /home/me/data-copy
    """
    from fluss.api.operations import ClusterOperations

    with connected(settings) as connection, byte_bar("backup") as bar:

        def show(status: BackupStatus) -> None:
            bar.set(status.bytes_done, status.bytes_total or None)

        done = ClusterOperations(connection).back_up(str(directory.absolute()), show)
    click.echo(
        f"{directory.absolute()}: {done.table_count} tables, {done.bucket_count} buckets with rows, "
        f"{size_text(done.bytes_total)} in {done.elapsed_ms / 1000:.1f} s"
    )


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@click.argument("data_dir", type=click.Path(path_type=Path))
def restore(backup: Path, data_dir: Path) -> None:
    """Make a data directory of a BACKUP, after reading all of it to see that it is good.

    DATA_DIR must be new or empty: nothing is ever overwritten. The backup stays as it is.

    \b
    Examples:
      fluss restore /var/backups/fluss-monday ./fluss-data
      fluss server --data-dir ./fluss-data
    """
    from fluss.storage.backup import files
    from fluss.storage.backup.files import check_target
    from fluss.storage.backup.restore import check
    from fluss.storage.backup.restore import restore as copy

    manifest = files.read(backup)
    check_target(data_dir)
    with byte_bar("checking") as bar:
        bar.begin("checking", manifest.size_bytes)
        check(backup, manifest, bar.add)
        bar.begin("copying", manifest.size_bytes)
        copy(backup, manifest, data_dir, bar.add)
    click.echo(
        f"{data_dir}: {len(manifest.buckets)} buckets with rows, {size_text(manifest.size_bytes)}; "
        f"serve it with: fluss server --data-dir {data_dir}"
    )
    tiered = _tiered(data_dir)
    if tiered:
        click.echo(
            f"fluss restore: rows of {', '.join(tiered)} that are in the lake are not in the backup. The lake has to "
            "be where it was, and no further than when the backup was made: its files name their places, so a copy "
            "elsewhere is not found.",
            err=True,
        )


def _tiered(data_dir: Path) -> list[str]:
    """Tables that have rows in a lake."""
    from fluss.storage.catalog.read import read_catalog

    content = read_catalog(data_dir)
    ids = {snapshot.table_id for snapshot in content.lake_snapshots}
    return sorted(str(table.path) for table in content.tables if table.table_id in ids)


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
        from fluss.storage.log.index import CorruptBatchError

        try:
            for batch in self._found:
                if batch.problem is not None:
                    self.damage = CorruptBatchError(batch.path, batch.position, batch.problem)
                yield batch
        except CorruptBatchError as error:
            self.damage = error


def _from_offset(rows: object, batch: DumpedBatch, from_offset: int) -> object:
    return rows.slice(max(0, from_offset - batch.header.base_offset))  # type: ignore[attr-defined]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--apply", is_flag=True, help="Repair what is listed; without it nothing is changed.")
@click.option(
    "--fill-max", type=click.IntRange(0), metavar="N", help="Lost offsets of a bucket.  [default: 10,000,000]"
)
def repair(directory: Path, apply: bool, fill_max: int | None) -> None:
    """List what is damaged in a data DIRECTORY and what a repair would lose; repair it with --apply.

    A backup that is newer than the damage loses less: see 'fluss restore'. Rows that are left keep their offsets, and
    lost offsets are never used again: an empty batch of 48 bytes takes the place of each, for which readers get no row.
    Files that are replaced or removed are kept in DIRECTORY/lost. The server must be stopped for --apply.

    The exit code is 1 if there is damage, or with --apply if some is left.

    \b
    Examples:
      fluss repair ./fluss-data
      fluss repair ./fluss-data --apply
    """
    from fluss.storage.damage.survey import FILL_OFFSETS_MAX

    logging.getLogger("fluss").addHandler(logging.NullHandler())  # All that it would say is printed.
    _check(directory)
    fill_max = FILL_OFFSETS_MAX if fill_max is None else fill_max
    with byte_bar("checking") as bar:
        is_good = _apply(directory, fill_max, bar) if apply else _list(directory, fill_max, bar)
    sys.exit(0 if is_good else 1)


def _check(directory: Path) -> None:
    from fluss.storage.directory import read_version

    if read_version(directory) is None:
        raise FlussError(f"{directory} is empty or no data directory; name one that a server has used.")


def _survey(directory: Path, fill_max: int, bar: ByteBar, *, served: bool) -> Survey:
    from fluss.storage.damage.survey import survey

    return survey(directory, lambda size_bytes: bar.begin("checking", size_bytes), bar.add, fill_max, served=served)


def _list(directory: Path, fill_max: int, bar: ByteBar) -> bool:
    from fluss.storage.catalog.read import is_served

    served = is_served(directory)
    found = _survey(directory, fill_max, bar, served=served)
    for damage in found.damages:
        _print(damage, repaired="a repair", lost="would lose")
    _print_notes(found)
    if served:
        click.echo("A server is running on the directory, so the rows of primary-key tables were not checked.")
    if not found.damages:
        click.echo(f"{directory}: no damage was found.")
        return True
    total, possible = len(found.damages), sum(bool(damage.repair) for damage in found.damages)
    click.echo(f"{_count(total)} found, nothing was changed. {_next_step(directory, possible, total)}")
    return False


def _next_step(directory: Path, possible: int, total: int) -> str:
    if not possible:
        return "None can be repaired; see above what to do instead."
    some = "" if possible == total else f" {possible} of them"
    return f"To repair{some}: fluss repair {directory} --apply"


def _apply(directory: Path, fill_max: int, bar: ByteBar) -> bool:
    from fluss.storage.damage.repair import Repair, in_order
    from fluss.storage.directory import LOST_NAME, DataDirectory

    locked = DataDirectory.open(directory)
    try:
        found = _survey(directory, fill_max, bar, served=False)
        repairs = Repair(locked, found)
        try:
            for damage in in_order(found.damages):
                if damage.repair:
                    repairs.apply(damage)
                _print(damage, repaired="repaired" if damage.repair else "a repair", lost="lost")
        finally:
            repairs.close()
        left = _survey(directory, fill_max, bar, served=False)
    finally:
        locked.close()
    if not found.damages:
        click.echo(f"{directory}: no damage was found.")
    elif not left.damages:
        kept = directory / LOST_NAME
        click.echo(f"{_count(len(found.damages))} repaired. What was replaced or removed is kept in {kept}.")
    else:
        click.echo(f"{_count(len(left.damages))} left.")
    return not left.damages


def _count(number: int) -> str:
    return f"{number} damage{'s' if number > 1 else ''}"


def _print(damage: Damage, repaired: str, lost: str) -> None:
    click.echo(click.style(damage.subject, fg="red"))
    _line("file", str(damage.path))
    _line("damage", damage.text)
    _line(repaired, damage.repair or "is not possible")
    if damage.repair:
        _line(lost, damage.loss or "nothing")
    if damage.advice:
        _line("advice", damage.advice)
    if damage.is_mended:
        _line("note", "the server also does that by itself when it opens the bucket")


def _line(name: str, text: str) -> None:
    click.echo(f"  {name + ':':<12}{text}")


def _print_notes(found: Survey) -> None:
    for note in found.notes:
        click.echo(f"note: {note.subject}: {note.text}. {note.advice}")
