"""The commands `fluss backup` and `fluss restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.output import byte_bar, size_text

if TYPE_CHECKING:
    from fluss.api.operations import BackupStatus
    from fluss.model.config import Config


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
