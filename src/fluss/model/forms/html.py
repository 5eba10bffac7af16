"""Tables and lists as HTML for notebooks: escaped, and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fluss.model.infos import TableInfo

ROWS_MAX: Final = 200


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A titled table; None is an empty cell."""
    found = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in found[:ROWS_MAX]
    )
    more = f"<p>and {len(found) - ROWS_MAX:,} more</p>" if len(found) > ROWS_MAX else ""
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def html_facts(facts: Mapping[str, str | int | None]) -> str:
    """A line of facts; those without a value are left out."""
    shown = " · ".join(
        f"{escape(name)}: {escape(str(value))}" for name, value in facts.items() if value not in (None, "")
    )
    return f"<p>{shown}</p>" if shown else ""


def html_of_table(info: TableInfo) -> str:
    """What a table is: its columns, keys, buckets and properties."""
    columns = (
        (column.name, column.data_type, _role(column.name, info), column.comment) for column in info.schema.columns
    )
    facts: dict[str, str | int | None] = {
        "id": info.table_id,
        "buckets": info.num_buckets,
        "bucket key": ", ".join(info.get_bucket_keys()),
        "comment": info.comment,
    }
    text = html_table(str(info.table_path), ("column", "type", "key", "comment"), columns) + html_facts(facts)
    return text + html_facts({**info.properties, **info.custom_properties})


def _role(name: str, info: TableInfo) -> str:
    roles = (("primary", info.primary_keys), ("partition", info.partition_keys))
    return ", ".join(role for role, keys in roles if name in keys)
