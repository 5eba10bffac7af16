"""Input that is almost right: messages of any type, batches, and bytes, changed where it hurts."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fluss.formats.batches.kv_batch import (
    HEADER_SIZE_BYTES,
    decode_records,
    encode_header,
    encode_records,
    parse_header,
)
from fluss.protocol import messages_pb2 as pb

INTERESTING: Final = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 32_767, 65_536, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
LIST_LENGTH_MAX: Final = 4
DEPTH_MAX: Final = 12
_KNOWN: Final = 0.8  # how often a value is one that the server knows
# Where the fields of a batch header lie: name, position, struct format. After the epoch of magic 2 all are 4 later.
_FIELDS: Final = (
    ("base_offset", 0, "<q"),
    ("length", 8, "<i"),
    ("magic", 12, "<b"),
    ("commit_timestamp", 13, "<q"),
    ("crc", 21, "<I"),
    ("schema_id", 25, "<h"),
    ("attributes", 27, "<B"),
    ("last_offset_delta", 28, "<i"),
    ("writer_id", 32, "<q"),
    ("batch_sequence", 40, "<i"),
    ("record_count", 44, "<i"),
    ("statistics_length", 48, "<i"),
)
# The same of a kv batch.
_KV_FIELDS: Final = (
    ("length", 0, "<i"),
    ("magic", 4, "<b"),
    ("crc", 5, "<I"),
    ("schema_id", 9, "<h"),
    ("attributes", 11, "<B"),
    ("writer_id", 12, "<q"),
    ("batch_sequence", 20, "<i"),
    ("record_count", 24, "<i"),
)
_EPOCH_SIZE: Final = 4
_MAGIC_AT: Final = 12
_CRC_AT: Final = 21


class Pools:
    """Values that mean something to the server, so that a random message gets past the first check.

    `by_name` has values for fields of a certain name, which are taken most of the time.
    """

    def __init__(self, by_name: dict[str, list[Any]]) -> None:
        self.by_name = by_name
        self.strings = ["", "..", "ä\u202e", "x" * 300, "\0", "ARROW", "1"]
        self.bytes = [b"", b"\xff", b"x" * 3_000, b"{}"]

    def pick(self, name: str, others: Sequence[Any], chance: random.Random) -> Any:
        known = self.by_name.get(name)
        return chance.choice(known if known and chance.random() < _KNOWN else others)


def random_message(kind: type[Message], pools: Pools, chance: random.Random, depth: int = 0) -> Any:
    """A message with any of its fields set, required ones most of the time."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            for _ in range(chance.choice((0, 0, 1, 1, 2, LIST_LENGTH_MAX)) if depth < DEPTH_MAX else 0):
                _add(message, field, pools, chance, depth)
        elif chance.random() < (0.97 if field.is_required else 0.5):
            _set(message, field, pools, chance, depth)
    return message


def _add(message: Any, field: Any, pools: Pools, chance: random.Random, depth: int) -> None:
    values = getattr(message, field.name)
    if field.message_type is not None:
        item = values.add()
        item.MergeFrom(random_message(type(item), pools, chance, depth + 1))
    else:
        values.append(_value(field, pools, chance))


def _set(message: Any, field: Any, pools: Pools, chance: random.Random, depth: int) -> None:
    if field.message_type is not None:
        if depth < DEPTH_MAX:
            part = getattr(message, field.name)
            part.MergeFrom(random_message(type(part), pools, chance, depth + 1))
    else:
        setattr(message, field.name, _value(field, pools, chance))


def _value(field: Any, pools: Pools, chance: random.Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        others = pools.strings if field.type == FieldDescriptor.TYPE_STRING else pools.bytes
        return pools.pick(field.name, others, chance)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice((0.0, 1.5, float("nan"), float("inf")))
    # A wait is not what is tested, and a small one for all keeps the test short.
    number = 5 if field.name.endswith(("_wait_ms", "timeout_ms")) else pools.pick(field.name, INTERESTING, chance)
    bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    if field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return number % 2**bits
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def mutated(data: bytes | bytearray, chance: random.Random) -> bytes:
    """The same bytes with a few changes: bits, numbers, pieces taken out, doubled or swapped, the end cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if not changed:
            break
        at = chance.randrange(len(changed))
        size = min(chance.choice((1, 2, 4, 8, 64)), len(changed) - at)
        match chance.randrange(7):
            case 0 | 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                _put(changed, at, chance.choice(("<i", ">i", "<q", "<h", "<b")), chance.choice(INTERESTING))
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                changed[at : at + size] = chance.randbytes(size)
            case 6:
                del changed[at:]
    return bytes(changed)


def mutated_batch(batch: bytes | bytearray, chance: random.Random) -> bytes:
    """A batch with a changed header field or changed content, mostly with length and checksum made right again."""
    changed = bytearray(batch)
    if chance.random() < 0.4:
        name, at, kind = chance.choice(_FIELDS)
        at += _EPOCH_SIZE if changed[_MAGIC_AT] == 2 and at >= _CRC_AT else 0
        _put(changed, at, kind, chance.choice((*INTERESTING, 3, 9)))
        keep_length = name == "length"
    else:
        header_size = chance.choice((48, 52, 56, 64, 100))
        changed = changed[:header_size] + mutated(changed[header_size:], chance)
        keep_length = False
    if not keep_length and chance.random() < 0.9:
        _put(changed, 8, "<i", len(changed) - 12)
    return sealed(changed) if chance.random() < 0.9 else bytes(changed)


def mutated_kv_batch(batch: bytes, chance: random.Random) -> bytes:
    """A kv batch with a changed header field, changed bytes, or records that are changed but whole."""
    match chance.randrange(5):
        case 0:
            changed = bytearray(batch)
            name, at, kind = chance.choice(_KV_FIELDS)
            _put(changed, at, kind, chance.choice((*INTERESTING, 3, 9)))
            return sealed_kv(changed, keep_length=name == "length", keep_crc=name == "crc")
        case 1:
            changed = bytearray(batch[:HEADER_SIZE_BYTES]) + mutated(batch[HEADER_SIZE_BYTES:], chance)
            return sealed_kv(changed)
        case _:
            return _with_changed_records(batch, chance)


def _with_changed_records(batch: bytes, chance: random.Random) -> bytes:
    header = parse_header(batch)
    keys, values = decode_records(batch, header)
    rows = [None if value is None else value[2:] for value in values]
    for _ in range(chance.choice((1, 1, 2, 4)) if keys else 0):
        at, other = chance.randrange(len(keys)), chance.randrange(len(keys))
        match chance.randrange(8):
            case 0 | 1 | 2:
                rows[at] = mutated(rows[at] or b"", chance) or None
            case 3:
                keys[at] = mutated(keys[at], chance)
            case 4:
                keys[at] = keys[other]
            case 5:
                rows[at] = rows[other]
            case 6:
                rows[at] = None
            case 7:
                keys.append(keys[other])
                rows.append(rows[at])
    records = encode_records(pa.array(keys, pa.binary()), pa.array(rows, pa.binary()))
    made = encode_header(
        records,
        schema_id=header.schema_id,
        record_count=len(keys),
        writer_id=header.writer_id,
        batch_sequence=chance.choice((header.batch_sequence, header.batch_sequence, 0, 1, 7)),
    )
    return bytes(made + records)


def sealed_kv(batch: bytes | bytearray, *, keep_length: bool = False, keep_crc: bool = False) -> bytes:
    """A kv batch with length and checksum made right."""
    changed = bytearray(batch)
    if not keep_length:
        _put(changed, 0, "<i", len(changed) - 4)
    if not keep_crc:
        _put(changed, 5, "<I", crc32c(bytes(changed[9:])))
    return bytes(changed)


def sealed(batch: bytes | bytearray) -> bytes:
    """With a right checksum, so that what follows it is looked at."""
    changed = bytearray(batch)
    at = _CRC_AT + (_EPOCH_SIZE if len(changed) > _MAGIC_AT and changed[_MAGIC_AT] == 2 else 0)
    if len(changed) >= at + 4:
        struct.pack_into("<I", changed, at, crc32c(bytes(changed[at + 4 :])))
    return bytes(changed)


def with_epoch(batch: bytes | bytearray) -> bytes:
    """A batch of magic 1 as magic 2."""
    changed = bytearray(batch)
    changed[_MAGIC_AT] = 2
    changed[_CRC_AT:_CRC_AT] = bytes(_EPOCH_SIZE)
    _put(changed, 8, "<i", len(changed) - 12)
    return sealed(changed)


def random_predicate(field_ids: list[int], chance: random.Random, depth: int = 0) -> pb.PbPredicate:
    """A filter, right or nearly so."""
    predicate = pb.PbPredicate(type=chance.choice((0, 0, 1)) if depth < DEPTH_MAX else 0)
    if chance.random() < 0.03:
        predicate.type = chance.choice(INTERESTING[:8])
    if predicate.type == 1:
        predicate.compound.function = chance.choice((0, 1, 1, 9))
        for _ in range(chance.choice((0, 1, 2, 3))):
            predicate.compound.children.append(random_predicate(field_ids, chance, depth + 1))
    else:
        predicate.leaf.function = chance.randrange(-1, 16)
        predicate.leaf.field_id = chance.choice([*field_ids, -1, 99])
        for _ in range(chance.choice((0, 1, 1, 1, 2, 20))):
            literal = random_message(pb.PbLiteralValue, Pools({}), chance)
            literal.literal_type = chance.randrange(-1, 20)
            predicate.leaf.literals.append(literal)
    return predicate


def _put(data: bytearray, at: int, kind: str, number: int) -> None:
    size = struct.calcsize(kind)
    if at + size <= len(data):
        data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "big" if kind[0] == ">" else "little")
