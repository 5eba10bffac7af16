"""Checks of Arrow: record batch messages, their layout, and columns of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.kernels import codes
from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import I32_MAX, as_int32, load, pointer
from fluss.model.errors import CorruptDataError

# A message: a marker and the size of the metadata, the metadata as flatbuffers, the body. Numbers are little-endian.
_CONTINUATION = cython.declare(cython.longlong, 0xFFFFFFFF)
_ARROW_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, 8)
_HEADER_TYPE_RECORD_BATCH = cython.declare(cython.int, 3)
_STORED_RAW = cython.declare(cython.longlong, -1)
_ARROW_CODEC_MAX = cython.declare(cython.int, 1)  # 0 is LZ4_FRAME, 1 is ZSTD
# A batch is a few MiB; this leaves room for very compressible ones and stops a made-up size.
_DECODED_SIZE_BYTES_MAX = cython.declare(cython.longlong, 1 << 30)
_ARROW_PAIRS_MAX = cython.declare(cython.longlong, 1 << 16)

# Slots of the flatbuffers tables of Arrow's Message.fbs.
_MESSAGE_HEADER_TYPE = cython.declare(cython.int, 1)
_MESSAGE_HEADER = cython.declare(cython.int, 2)
_MESSAGE_BODY_LENGTH = cython.declare(cython.int, 3)
_BATCH_LENGTH = cython.declare(cython.int, 0)
_BATCH_NODES = cython.declare(cython.int, 1)
_BATCH_BUFFERS = cython.declare(cython.int, 2)
_BATCH_COMPRESSION = cython.declare(cython.int, 3)
_COMPRESSION_CODEC = cython.declare(cython.int, 0)

# Numbers of a node in a layout: how many buffers it has, bits of a value, values beyond the rows, parent.
_NODE_NUMBERS = cython.declare(cython.Py_ssize_t, 4)
_TOP = cython.declare(cython.longlong, codes.NODE_TOP)
_LIST_CHILD = cython.declare(cython.longlong, codes.NODE_LIST_CHILD)


@cython.cclass
class _Metadata:
    """The metadata of a message; every read says where, and is refused outside."""

    data: cython.p_uchar
    start: cython.Py_ssize_t
    size: cython.longlong

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def number(self, at: cython.longlong, width: cython.int) -> cython.longlong:
        """Signed in 4 or 8 bytes, unsigned in 1 or 2."""
        place: cython.Py_ssize_t
        if at < 0 or at > self.size - width:
            raise CorruptDataError("Arrow message: the metadata points outside the message")
        place = self.start + at
        if width >= 4:
            return load(self.data, place, width)
        if width == 2:
            return self.data[place] | self.data[place + 1] << 8
        return self.data[place]

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def field(self, table: cython.longlong, slot: cython.int) -> cython.longlong:
        """Position of a table's field, 0 when the table does not have it."""
        vtable: cython.longlong = table - self.number(table, 4)
        if vtable < 0:
            raise CorruptDataError(f"Arrow message: a field table lies at {vtable}")
        at: cython.longlong = 4 + 2 * slot
        if at >= self.number(vtable, 2):
            return 0
        relative: cython.longlong = self.number(vtable + at, 2)
        return table + relative if relative else 0

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def target(self, at: cython.longlong) -> cython.longlong:
        """Where the field at a position points."""
        if not at:
            raise CorruptDataError("Arrow message: a required field is missing")
        return at + (self.number(at, 4) & _CONTINUATION)

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def int64(self, at: cython.longlong) -> cython.longlong:
        return self.number(at, 8) if at else 0

    @cython.cfunc
    def pairs(self, table: cython.longlong, slot: cython.int) -> tuple:
        """The numbers of a vector of nodes or buffers, which have two each."""
        at: cython.longlong = self.field(table, slot)
        if not at:
            return ()
        at = self.target(at)
        count: cython.longlong = self.number(at, 4) & _CONTINUATION
        if count > _ARROW_PAIRS_MAX:
            raise CorruptDataError(f"Arrow message: {count} nodes or buffers, more than {_ARROW_PAIRS_MAX}")
        return tuple([self.number(at + 4 + 8 * i, 8) for i in range(2 * count)])

    @cython.cfunc
    def codec(self, batch: cython.longlong) -> object:
        at: cython.longlong = self.field(batch, _BATCH_COMPRESSION)
        if not at:
            return None
        at = self.field(self.target(at), _COMPRESSION_CODEC)
        codec: cython.longlong = self.number(at, 1) if at else 0
        if codec > _ARROW_CODEC_MAX:
            raise CorruptDataError(f"Arrow message: codec {codec} is not known")
        return codec


@cython.ccall
def read_message(view: memoryview) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], int | None]:
    """Rows, start and size of the body, nodes, buffers and codec of the message at the start of `view`."""
    size: cython.longlong = len(view)
    metadata: _Metadata = _Metadata()
    metadata.data = pointer(view)
    metadata.start = 0
    metadata.size = size
    marker: cython.longlong = metadata.number(0, 4) & _CONTINUATION
    if marker != _CONTINUATION:
        raise CorruptDataError(f"Arrow message: starts with {marker:08x}, not with {_CONTINUATION:08x}")
    metadata_size: cython.longlong = metadata.number(4, 4)
    body_start: cython.longlong = _ARROW_PREFIX_BYTES + metadata_size
    if metadata_size <= 0 or body_start > size:
        raise CorruptDataError(f"Arrow message: metadata of {metadata_size} bytes in {size} bytes")
    metadata.start = _ARROW_PREFIX_BYTES
    metadata.size = metadata_size
    message: cython.longlong = metadata.number(0, 4) & _CONTINUATION
    at: cython.longlong = metadata.field(message, _MESSAGE_HEADER_TYPE)
    if not at or metadata.number(at, 1) != _HEADER_TYPE_RECORD_BATCH:
        raise CorruptDataError("Arrow message: not a record batch")
    batch: cython.longlong = metadata.target(metadata.field(message, _MESSAGE_HEADER))
    body_size: cython.longlong = metadata.int64(metadata.field(message, _MESSAGE_BODY_LENGTH))
    if body_size < 0 or body_size > size - body_start:
        raise CorruptDataError(f"Arrow message: body of {body_size} bytes, {size - body_start} are there")
    row_count: cython.longlong = metadata.int64(metadata.field(batch, _BATCH_LENGTH))
    if row_count < 0:
        raise CorruptDataError(f"Arrow message: {row_count} rows")
    nodes: tuple = metadata.pairs(batch, _BATCH_NODES)
    buffers: tuple = metadata.pairs(batch, _BATCH_BUFFERS)
    _check_in_body(buffers, body_size)
    return row_count, body_start, body_size, nodes, buffers, metadata.codec(batch)


@cython.cfunc
def _check_in_body(buffers: tuple, body_size: cython.longlong) -> object:
    i: cython.Py_ssize_t
    start: cython.longlong
    length: cython.longlong
    total: cython.longlong = 0
    for i in range(0, len(buffers), 2):
        start = buffers[i]
        length = buffers[i + 1]
        if start < 0 or length < 0 or length > body_size or start > body_size - length:
            raise CorruptDataError(f"Arrow message: buffers outside of the body of {body_size} bytes")
        total += length
    if total > body_size:
        # Else a batch could hold the same bytes many times, and a projection of it would be larger than all of it.
        raise CorruptDataError(f"Arrow message: buffers of {total} bytes in a body of {body_size}")
    return None


@cython.ccall
def decoded_sizes(
    view: memoryview, body_start: int, buffers: tuple[int, ...], compressed: bool
) -> tuple[list[int], int, bool]:
    """The sizes of the buffers of a message that was read once decoded, their sum, and if any is used where it lies."""
    i: cython.Py_ssize_t
    start: cython.longlong
    size: cython.longlong
    announced: cython.longlong
    total: cython.longlong = 0
    has_raw: cython.bint = False
    has_codec: cython.bint = compressed
    base: cython.longlong = body_start
    end: cython.longlong = len(view)
    data: cython.p_uchar = pointer(view)
    numbers: tuple = buffers
    sizes: list = []
    for i in range(0, len(numbers), 2):
        start = base + numbers[i]
        size = numbers[i + 1]
        if size and has_codec:
            if size < 8 or start < 0 or start > end - 8:
                raise CorruptDataError(f"Arrow message: compressed buffer of {size} bytes has no room for its size")
            announced = load(data, start, 8)
            if announced < _STORED_RAW:
                raise CorruptDataError(f"Arrow message: compressed buffer announces {announced} bytes")
            if announced == _STORED_RAW:
                has_raw = True
                size -= 8
            else:
                size = announced
        elif size:
            has_raw = True
        if size > _DECODED_SIZE_BYTES_MAX - total:
            raise CorruptDataError(f"Arrow message: would take more than {_DECODED_SIZE_BYTES_MAX} bytes")
        total += size
        sizes.append(size)
    return sizes, total, has_raw


def check_message(layout: tuple[int, ...], view: memoryview, record_count: int) -> None:
    """Refuse a message at the start of `view` that does not fit, or has not so many rows."""
    message: tuple = read_message(view)
    if message[0] != record_count:
        raise CorruptDataError(f"the batch announces {record_count} records, its Arrow payload has {message[0]}")
    sizes: tuple = decoded_sizes(view, message[1], message[4], message[5] is not None)
    check_layout(layout, record_count, message[3], sizes[0])


@cython.ccall
def check_layout(layout: tuple[int, ...], row_count: int, nodes: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuse a message whose nodes and decoded buffers are not as many, or not so large, as they must be."""
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    expected: cython.longlong
    length: cython.longlong
    nulls: cython.longlong
    parent: cython.longlong
    bits: cython.longlong
    beyond: cython.longlong
    size: cython.longlong
    rows: cython.longlong = row_count
    shape: tuple = layout
    lengths: tuple = tuple(nodes)
    bytes_of: tuple = tuple(sizes)
    node_count: cython.Py_ssize_t = len(shape) // _NODE_NUMBERS
    buffer_count: cython.Py_ssize_t = 0
    for number in range(node_count):
        buffer_count += shape[_NODE_NUMBERS * number]
    if len(lengths) != 2 * node_count or len(bytes_of) != buffer_count:
        raise CorruptDataError(
            f"Arrow message: {len(lengths) // 2} nodes and {len(bytes_of)} buffers, "
            f"the schema makes {node_count} and {buffer_count}"
        )
    if rows > I32_MAX:
        raise CorruptDataError(f"Arrow message: {rows} rows, more than {I32_MAX}")
    for number in range(node_count):
        bits = shape[_NODE_NUMBERS * number + 1]
        beyond = shape[_NODE_NUMBERS * number + 2]
        parent = shape[_NODE_NUMBERS * number + 3]
        length = lengths[2 * number]
        nulls = lengths[2 * number + 1]
        if parent != _LIST_CHILD:
            expected = rows if parent == _TOP else lengths[2 * parent]
            if length != expected:
                raise CorruptDataError(f"Arrow message: node {number} has {length} rows, not {expected}")
        if nulls < 0 or nulls > length or length > I32_MAX:
            raise CorruptDataError(f"Arrow message: node {number} has {nulls} nulls in {length} rows")
        size = bytes_of[at]
        # Without nulls there need be no validity.
        if size < (length + 7) >> 3 and (nulls or size):
            raise CorruptDataError(
                f"Arrow message: node {number} has {size} bytes of validity, not {(length + 7) >> 3}"
            )
        if bits and length:
            size = bytes_of[at + 1]
            if length + beyond > 8 * size // bits:
                raise CorruptDataError(
                    f"Arrow message: node {number} has {size} bytes of values or offsets for {length} rows"
                )
        at += shape[_NODE_NUMBERS * number]


def are_strings_sound(offsets: Any, data: Any, start: int, count: int, text: bool) -> bool:
    """Whether `count` strings lie in `data` one behind the other, and in ASCII if they are `text`.

    `offsets` are int32, those from `start` on count. False is no verdict for text: it may be UTF-8 all the same.
    """
    i: cython.Py_ssize_t
    first: cython.Py_ssize_t = start
    last: cython.Py_ssize_t = first + count
    if first < 0 or last < first or len(offsets) // 4 <= last:
        return False
    ends: cython.p_int = as_int32(pointer(offsets))
    # No early end in these loops: C compilers then work on many values at a time.
    descents: cython.int = 0
    for i in range(first, last):
        descents |= ends[i + 1] < ends[i]
    if descents or ends[first] < 0 or ends[last] > len(data):
        return False
    seen: cython.uchar = 0
    if text and ends[last] > ends[first]:
        content: cython.p_uchar = pointer(data)
        for i in range(ends[first], ends[last]):
            seen |= content[i]
    return seen < 0x80
