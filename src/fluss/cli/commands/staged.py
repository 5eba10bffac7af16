"""The command `fluss staged`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import open_table
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config

if TYPE_CHECKING:
    from fluss.model.staging import StagedQueryInfo

_BATCH = click.IntRange(0, 2**63 - 1)


@click.group()
def staged() -> None:
    """List queries with staged writes, and settle batches that were refused.

    A stream of Spark with exactly.once is such a query; its id is in the file 'metadata' of its checkpoint. The server
    remembers the last batch that a query has committed. When that batch comes again with the same rows it is done.
    When it comes with others, or an earlier one comes, the server can't know what is right and refuses it: either
    'accept' it or 'reset' the query.

    Example: fluss staged list
    """


@staged.command(name="list")
@click.argument("table", required=False)
@connection_options
@output_option
def list_queries(table: str | None, settings: Config, output: str) -> None:
    """List the queries of all tables, or of one: the last committed batch, and what is staged.

    Example: fluss staged list shop.orders
    """
    import pyarrow as pa

    from fluss.api.operations import ClusterOperations

    with connected(settings) as connection:
        path = None if table is None else open_table(connection, table).table_path
        found = ClusterOperations(connection).staged_queries()
    rows = [_listed(query) for query in found if path in (None, query.table_path)]
    if not rows and output == "table":
        click.echo("no queries with staged writes")
        return
    moment = pa.timestamp("ms", "UTC")
    schema = [
        ("table", pa.string()),
        ("query", pa.string()),
        ("batch", pa.int64()),
        ("rows", pa.int64()),
        ("used", moment),
        ("committing", pa.int64()),
        ("accepted up to", pa.int64()),
        ("staged bytes", pa.int64()),
        ("staged since", moment),
    ]
    write_rows(schema, sorted(rows, key=lambda row: (row["table"], row["query"])), output)


def _listed(query: StagedQueryInfo) -> dict[str, Any]:
    return {
        "table": str(query.table_path),
        "query": f"(files {query.file_name}.*)" if query.query_id is None else query.query_id,
        "batch": query.batch_id,
        "rows": query.row_count,
        "used": _moment(query.used_ms),
        "committing": query.decided_batch_id,
        "accepted up to": query.accepted_batch_id,
        "staged bytes": query.staged_bytes,
        "staged since": _moment(query.staged_since_ms),
    }


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)


@staged.command()
@click.argument("table")
@click.argument("query")
@click.argument("batch", type=_BATCH)
@click.option("--yes", is_flag=True, help="Don't ask.")
@connection_options
def accept(table: str, query: str, batch: int, yes: bool, settings: Config) -> None:
    """Say that the rows of all batches up to BATCH are in the table.

    Batches of the query up to BATCH that come again are then answered as done, whatever rows they have, and are not
    stored. This holds until the query commits the batch that follows its last one. Right for a query that is not
    deterministic, and for one that was put back to an earlier checkpoint and gets the rows it had.

    Example: fluss staged accept shop.orders 5f9c7f3a-1c1e-4c1c-9d0a-0d5a2b8e6f11 17
    """
    from fluss.api.operations import ClusterOperations

    with connected(settings) as connection:
        info = open_table(connection, table).get_table_info()
        if not yes:
            question = f"Drop rows that query {query} writes to {info.table_path} again, in batches up to {batch}?"
            click.confirm(question, abort=True, err=True)
        ClusterOperations(connection).accept_staged(info.table_id, query, batch)
    click.echo(f"query {query}: batches up to {batch} that come again are taken for stored in {info.table_path}")


@staged.command()
@click.argument("table")
@click.argument("query")
@click.option("--to", "batch", type=_BATCH, metavar="BATCH", help="Take BATCH for the last one committed.")
@click.option("--give-up", is_flag=True, help="Also if a commit has begun and can't be finished.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@connection_options
def reset(table: str, query: str, batch: int | None, give_up: bool, yes: bool, settings: Config) -> None:
    """Forget what a query has committed, or move it to BATCH, so that the batches that follow are stored.

    Rows of batches that are in the table already and come again are stored a second time. What the query has staged
    and not committed is dropped. Stop the query first.

    \b
    Examples:
      fluss staged reset shop.orders 5f9c7f3a-1c1e-4c1c-9d0a-0d5a2b8e6f11
      fluss staged reset shop.orders 5f9c7f3a-1c1e-4c1c-9d0a-0d5a2b8e6f11 --to 12
    """
    from fluss.api.operations import ClusterOperations

    with connected(settings) as connection:
        info = open_table(connection, table).get_table_info()
        which = "all batches" if batch is None else f"batches after {batch}"
        if not yes:
            question = f"Store {which} of query {query} in {info.table_path}, those that it has already a second time?"
            click.confirm(question, abort=True, err=True)
        ClusterOperations(connection).reset_staged(info.table_id, query, batch, gives_up=give_up)
    click.echo(f"query {query}: {which} that come are stored in {info.table_path}")
