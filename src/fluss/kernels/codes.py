"""What the kernels know of a column: small integers and numbers instead of type objects.

A *kind* says which Python values a column accepts and how they become plain ("physical") ones: ints in the column's
Arrow unit, floats, str, bytes, bool. A *spec* says how a physical value is written into a row; a *layout* is a row
format.

Kernels read these numbers once, when they are imported. `fluss.formats.rows.specs` makes them of a column's type.
"""

# Small on purpose: every import of a format loads it.

from __future__ import annotations

from typing import Final, NamedTuple

KIND_BOOL: Final = 1
KIND_INT: Final = 2
KIND_FLOAT: Final = 3
KIND_DOUBLE: Final = 4
KIND_STRING: Final = 5
KIND_BYTES: Final = 6
KIND_BINARY: Final = 7
KIND_DECIMAL: Final = 8
KIND_DATE: Final = 9
KIND_TIME: Final = 10
KIND_TIMESTAMP: Final = 11
KIND_TIMESTAMP_LTZ: Final = 12
KIND_ARRAY: Final = 13
KIND_MAP: Final = 14
KIND_ROW: Final = 15

CODE_BOOL: Final = 1
CODE_FIXED_INT: Final = 2
CODE_FIXED_FLOAT: Final = 3
CODE_VARINT: Final = 4
CODE_BYTES: Final = 5
CODE_FIXED_BYTES: Final = 6
CODE_BIG_DECIMAL: Final = 7
CODE_TIMESTAMP: Final = 8
CODE_CHAR: Final = 9  # indexed rows only, elsewhere a CHAR is like a STRING
CODE_NESTED: Final = 10  # bytes that were made of an array, map or row

LAYOUT_KEY: Final = 0  # compacted without null bits
LAYOUT_COMPACTED: Final = 1
LAYOUT_INDEXED: Final = 2

# Parents of an Arrow node that is no field of a struct.
NODE_TOP: Final = -1
NODE_LIST_CHILD: Final = -2

# What the kernels can do with the values of one key.
AGGREGATE_SUM: Final = 1
AGGREGATE_PRODUCT: Final = 2
AGGREGATE_MAX: Final = 3
AGGREGATE_MIN: Final = 4
AGGREGATE_FIRST: Final = 5
AGGREGATE_LAST: Final = 6


class Kind(NamedTuple):
    """How one column's Python values are checked and converted."""

    kind: int
    limit: int  # INT: bits; CHAR, BINARY: length, 0 = any; DECIMAL: 10^precision; TIME, TIMESTAMP: units per second
    scale: int  # DECIMAL only
    nullable: bool
    fixed_size_bytes: int  # of the Arrow value, or of its offset when the size varies; of all fields of a ROW
    type_text: str
    children: tuple[tuple[str, Kind], ...] = ()  # ARRAY: element; MAP: key and value; ROW: fields


class Spec(NamedTuple):
    """How one column lies in a row: stored = physical * multiplier // divisor."""

    code: int
    width_bytes: int  # of the Arrow value; of the place in the row for CODE_CHAR
    multiplier: int = 1
    divisor: int = 1
    bits: int = 64  # the pattern that a varint carries, or that is stored in full
    low: int = -(1 << 63)
    high: int = (1 << 63) - 1
