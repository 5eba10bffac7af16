"""Which field nodes and buffers the Arrow record batches of a schema have, and what a batch of them must keep to.

A column is one node, a nested one several in pre-order; each node has its own buffers, validity first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fluss.model.errors import CorruptDataError
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
_ROWS_MAX: Final = 2**31 - 1
_NO_VALUES: Final = 0  # a struct
_OFFSETS: Final = -1  # into the data behind them, or into the child of a list
_TOP: Final = -1
_LIST_CHILD: Final = -2


class Node(NamedTuple):
    buffers: int  # how many, validity included
    bits: int  # of a value, or _OFFSETS, or _NO_VALUES
    parent: int  # index of the struct it is a field of, or _TOP, or _LIST_CHILD


class Span(NamedTuple):
    """The nodes and buffers of one column."""

    node_start: int
    node_end: int
    buffer_start: int
    buffer_end: int


class ArrowLayout:
    """The nodes and buffers of all columns of a schema."""

    __slots__ = ("buffer_count", "columns", "nodes")

    def __init__(self, types: Sequence[DataType]) -> None:
        nodes: list[Node] = []
        columns: list[Span] = []
        buffers = 0
        for data_type in types:
            first, first_buffer = len(nodes), buffers
            _add(nodes, data_type, _TOP)
            buffers += sum(node.buffers for node in nodes[first:])
            columns.append(Span(first, len(nodes), first_buffer, buffers))
        self.nodes = tuple(nodes)
        self.columns = tuple(columns)
        self.buffer_count = buffers

    def check(self, row_count: int, nodes: Sequence[int], sizes: Sequence[int]) -> None:
        """Raise `CorruptDataError` unless a batch fits; `nodes` alternates lengths and null counts.

        `sizes` are those of the buffers once decompressed. What lies in them is checked by whoever reads them.
        """
        if len(nodes) != 2 * len(self.nodes) or len(sizes) != self.buffer_count:
            raise CorruptDataError(
                f"Arrow message: {len(nodes) // 2} nodes and {len(sizes)} buffers, "
                f"the schema makes {len(self.nodes)} and {self.buffer_count}"
            )
        if row_count > _ROWS_MAX:
            raise CorruptDataError(f"Arrow message: {row_count} rows, more than {_ROWS_MAX}")
        at = 0
        for number, (buffers, bits, parent) in enumerate(self.nodes):
            length, nulls = nodes[2 * number], nodes[2 * number + 1]
            if parent != _LIST_CHILD:
                expected = row_count if parent == _TOP else nodes[2 * parent]
                if length != expected:
                    raise CorruptDataError(f"Arrow message: node {number} has {length} rows, not {expected}")
            if not 0 <= nulls <= length <= _ROWS_MAX:
                raise CorruptDataError(f"Arrow message: node {number} has {nulls} nulls in {length} rows")
            validity = (length + 7) >> 3
            # Without nulls there need be no validity.
            if sizes[at] < validity and (nulls or sizes[at]):
                raise CorruptDataError(
                    f"Arrow message: node {number} has {sizes[at]} bytes of validity, not {validity}"
                )
            if bits != _NO_VALUES and sizes[at + 1] < _values_size(bits, length):
                raise CorruptDataError(
                    f"Arrow message: node {number} has {sizes[at + 1]} bytes of values or offsets for {length} rows"
                )
            at += buffers

    def null_lengths(self, row_count: int) -> list[int]:
        """The length of each node when every column is null; all of its values are, too."""
        lengths: list[int] = []
        for node in self.nodes:
            if node.parent == _LIST_CHILD:
                lengths.append(0)
            else:
                lengths.append(row_count if node.parent == _TOP else lengths[node.parent])
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
        _add(nodes, data_type.element, _LIST_CHILD)
    elif root is TypeRoot.MAP:
        assert data_type.key is not None
        assert data_type.value is not None
        nodes.append(Node(2, _OFFSETS, parent))
        entries = len(nodes)
        nodes.append(Node(1, _NO_VALUES, _LIST_CHILD))
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
