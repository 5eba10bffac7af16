"""Layouts: which field nodes and buffers the record batches of a schema have, and what a batch of them must keep to.

A column is one node, a nested one several in pre-order; each node has its own buffers, validity first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fluss.formats import kernel
from fluss.kernels.codes import NODE_LIST_CHILD, NODE_TOP
from fluss.model.types import DataType, TypeRoot

_FIXED_BITS: Final = {
    TypeRoot.BOOLEAN: 1,
    TypeRoot.TINYINT: 8,
    TypeRoot.SMALLINT: 16,
    TypeRoot.INTEGER: 32,
    TypeRoot.BIGINT: 64,
    TypeRoot.FLOAT: 32,
    TypeRoot.DOUBLE: 64,
    TypeRoot.DECIMAL: 128,
    TypeRoot.DATE: 32,
    TypeRoot.TIMESTAMP: 64,
    TypeRoot.TIMESTAMP_LTZ: 64,
}
_VARIABLE: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES)
_TIME_32_PRECISION_MAX: Final = 3
_OFFSET_BYTES: Final = 4
_NO_VALUES: Final = 0  # a struct
_OFFSETS: Final = -1  # into the data behind them, or into the child of a list


class Node(NamedTuple):
    buffers: int  # how many, validity included
    bits: int  # of a value, or _OFFSETS, or _NO_VALUES
    parent: int  # index of the struct it is a field of, or NODE_TOP, or NODE_LIST_CHILD


class Span(NamedTuple):
    """The nodes and buffers of one column."""

    node_start: int
    node_end: int
    buffer_start: int
    buffer_end: int


class ArrowLayout:
    """The nodes and buffers of all columns of a schema."""

    __slots__ = ("_numbers", "buffer_count", "columns", "nodes")

    def __init__(self, types: Sequence[DataType]) -> None:
        nodes: list[Node] = []
        columns: list[Span] = []
        buffers = 0
        for data_type in types:
            first, first_buffer = len(nodes), buffers
            _add(nodes, data_type, NODE_TOP)
            buffers += sum(node.buffers for node in nodes[first:])
            columns.append(Span(first, len(nodes), first_buffer, buffers))
        self.nodes = tuple(nodes)
        self.columns = tuple(columns)
        self.buffer_count = buffers
        self._numbers = tuple(number for node in nodes for number in _numbers(node))

    def check(self, row_count: int, nodes: Sequence[int], sizes: Sequence[int]) -> None:
        """Raise `CorruptDataError` unless a batch fits; `nodes` alternates lengths and null counts.

        `sizes` are those of the buffers once decompressed. What lies in them is checked by whoever reads them.
        """
        kernel.check_layout(self._numbers, row_count, nodes, sizes)

    def check_message(self, view: memoryview, record_count: int) -> None:
        """Raise `CorruptDataError` unless the message at the start of `view` fits and has so many rows."""
        kernel.check_message(self._numbers, view, record_count)

    def null_lengths(self, row_count: int) -> list[int]:
        """The length of each node when every column is null; all of its values are, too."""
        lengths: list[int] = []
        for node in self.nodes:
            if node.parent == NODE_LIST_CHILD:
                lengths.append(0)
            else:
                lengths.append(row_count if node.parent == NODE_TOP else lengths[node.parent])
        return lengths

    def least_sizes(self, lengths: Sequence[int]) -> list[int]:
        """The size of each buffer, with validity and without data behind offsets."""
        sizes: list[int] = []
        for node, length in zip(self.nodes, lengths, strict=True):
            sizes.append((length + 7) >> 3)
            if node.bits != _NO_VALUES:
                sizes.append(_values_size(node.bits, length))
            sizes += [0] * (node.buffers - 2)
        return sizes


def _numbers(node: Node) -> tuple[int, int, int, int]:
    """A node as the kernel knows it: offsets are one value more than rows."""
    if node.bits == _OFFSETS:
        return node.buffers, 8 * _OFFSET_BYTES, 1, node.parent
    return node.buffers, node.bits, 0, node.parent


def _values_size(bits: int, length: int) -> int:
    if not length:
        return 0
    return (length + 1) * _OFFSET_BYTES if bits == _OFFSETS else (length * bits + 7) >> 3


def _add(nodes: list[Node], data_type: DataType, parent: int) -> None:
    root = data_type.root
    if root in _VARIABLE:
        nodes.append(Node(3, _OFFSETS, parent))
    elif root is TypeRoot.ARRAY:
        assert data_type.element is not None
        nodes.append(Node(2, _OFFSETS, parent))
        _add(nodes, data_type.element, NODE_LIST_CHILD)
    elif root is TypeRoot.MAP:
        assert data_type.key is not None
        assert data_type.value is not None
        nodes.append(Node(2, _OFFSETS, parent))
        entries = len(nodes)
        nodes.append(Node(1, _NO_VALUES, NODE_LIST_CHILD))
        _add(nodes, data_type.key, entries)
        _add(nodes, data_type.value, entries)
    elif root is TypeRoot.ROW:
        row = len(nodes)
        nodes.append(Node(1, _NO_VALUES, parent))
        for field in data_type.fields:
            _add(nodes, field.data_type, row)
    else:
        nodes.append(Node(2, _bits(data_type), parent))


def _bits(data_type: DataType) -> int:
    if data_type.root is TypeRoot.BINARY:
        return 8 * data_type.length
    if data_type.root is TypeRoot.TIME:
        return 32 if data_type.precision <= _TIME_32_PRECISION_MAX else 64
    return _FIXED_BITS[data_type.root]
