"""The catalog as HTML for notebooks."""

from __future__ import annotations

from typing import Final

from fluss.client.admin import AdminCore
from fluss.client.runtime import run
from fluss.model.errors import FlussError
from fluss.model.html import html_facts, html_table

DATABASES_MAX: Final = 50


def html_of_catalog(admin: AdminCore) -> str:
    """All databases and the names of their tables. It asks the server; a notebook shows what went wrong, if it did."""
    try:
        databases = sorted(run(admin.list_databases()))
        rows = [(name, ", ".join(sorted(run(admin.list_tables(name))))) for name in databases[:DATABASES_MAX]]
    except FlussError as error:
        return html_facts({"FlussAdmin": error.message})
    left = len(databases) - len(rows)
    return html_table("Catalog", ("database", "tables"), [*rows, *([("…", f"{left:,} more")] if left else [])])
