"""What notebooks show: HTML that can't be broken out of, made of what is known."""

from __future__ import annotations

import re
import uuid
from html.parser import HTMLParser

import pytest

import fluss
import fluss.sync as fs
from fluss.testing import FlussServer

NASTY = "<script>alert('x')</script>"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not attrs, "nothing from elsewhere, and no style"

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def shown(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    assert parser.tags <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    return parser.text


@pytest.fixture
def table(our_server: FlussServer) -> fs.FlussTable:
    connection = fs.connect(our_server.bootstrap_servers)
    path = fs.TablePath("fluss", f"notebook_{uuid.uuid4().hex}")
    columns = [fs.Column("id", fs.DataTypes.int()), fs.Column(NASTY, fs.DataTypes.string(), NASTY)]
    schema = fs.Schema.of(columns, ["id"])
    descriptor = fs.TableDescriptor(schema, comment=NASTY, custom_properties={NASTY: NASTY})
    connection.get_admin().create_table(path, descriptor)
    return connection.get_table(path)


def test_a_table_and_its_info(table: fs.FlussTable) -> None:
    html = table.get_table_info()._repr_html_()
    text = shown(html)
    assert table._repr_html_() == html
    for part in (str(table.table_path), "int NOT NULL", "primary", NASTY, "buckets: 1"):
        assert part in text
    assert not re.search(r"<script|src=|href=", html)


def test_a_scan(table: fs.FlussTable) -> None:
    scan = table.new_scan().project([1]).filter(fs.col(NASTY) == "<b>")
    text = shown(scan._repr_html_())
    assert str(table.table_path) in text
    assert "int NOT NULL" not in text
    assert "filter: " in text


def test_the_catalog(table: fs.FlussTable, our_server: FlussServer) -> None:
    with fs.connect(our_server.bootstrap_servers) as connection:
        admin = connection.get_admin()
        text = shown(admin._repr_html_())
        assert "fluss|" in text
        assert table.table_path.table_name in text
    assert "closed" in shown(admin._repr_html_())


async def test_the_catalog_where_calls_are_awaited(table: fs.FlussTable, our_server: FlussServer) -> None:
    async with fluss.connect(our_server.bootstrap_servers) as connection:
        assert table.table_path.table_name in shown(connection.get_admin()._repr_html_())


def test_many_rows_are_cut() -> None:
    from fluss.model.infos import ROWS_MAX, html_table

    text = shown(html_table("t", ["n"], [[number] for number in range(ROWS_MAX + 5)]))
    assert "and 5 more" in text
    assert f"|{ROWS_MAX}|" not in text
