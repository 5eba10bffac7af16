"""Batches of staged writes that come again: which are done, and which are refused.

A stream repeats its last batch when it was stopped before it had noted that the batch is stored. Such a repetition is
done if it has the same rows. Any other repetition comes from a stream that was put back, and to take it for done would
drop its rows: it is refused until somebody says what is right, by `fluss staged accept` or `fluss staged reset`.
"""

from __future__ import annotations

import logging

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath
from fluss.model.staging import StagedRows
from fluss.storage.catalog.db import StagedQuery

_log = logging.getLogger(__name__)


def is_done(query: StagedQuery, path: TablePath, batch_id: int, rows: StagedRows | None) -> bool:
    """Whether the batch is committed; raises for one that comes again and may not."""
    if batch_id > query.committed:
        return False
    if batch_id <= query.accepted:
        return True
    check_order(query, path, batch_id)
    if rows is None or query.rows is None:
        who = "the client does not tell" if rows is None else "an older version did not note"
        text = "batch %d of query %r to %s came again and is taken for done, not compared with the first: %s which rows"
        _log.warning(text, batch_id, query.query_id, path, who)
    elif rows != query.rows:
        raise _refused(query, path, batch_id, _difference(rows, query.rows))
    return True


def check_order(query: StagedQuery, path: TablePath, batch_id: int) -> None:
    """Raise for a batch before the last one, unless it was accepted."""
    if query.accepted < batch_id < _last(query):
        raise _refused(query, path, batch_id, ". Was the query put back to an earlier checkpoint?")


def _last(query: StagedQuery) -> int:
    """The last batch that is committed, or surely will be."""
    return query.committed if query.decided is None else query.decided.batch_id


def _difference(rows: StagedRows, committed: StagedRows) -> str:
    counts = f"{rows.row_count} rows now, {committed.row_count} then"
    return f", with other rows ({counts}). Was the query put back to an earlier checkpoint, or is it not deterministic?"


def _refused(query: StagedQuery, path: TablePath, batch_id: int, reason: str) -> InvalidRequestError:
    last = _last(query)
    import shlex  # only for the text of an error

    name = f"{path} {shlex.quote(query.query_id)}"
    back = f" --to {batch_id - 1}" if batch_id else ""
    return InvalidRequestError(
        f"Batch {batch_id} of query {query.query_id!r} is refused: batch {last} is the last one committed to table "
        f"{path}{reason} If the table has the rows of all batches up to {last}: `fluss staged accept {name} {last}`. "
        "If the rows from this batch on are to be stored, those that are there a second time: "
        f"`fluss staged reset {name}{back}`.",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )
