"""The kernels that merge rows, compiled and plain."""

from __future__ import annotations

import copy
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.formats.modes import in_both_modes, needs_both

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans()), max_size=12)


@needs_both
@given(
    batch=ROWS,
    stored=st.sets(st.sampled_from([b"a", b"b", b"c"])),
    kept=st.none() | st.binary(min_size=3, max_size=3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    data=st.data(),
)
def test_kernels_agree(
    batch: list[tuple[bytes, bool]], stored: set[bytes], kept: bytes | None, flags: Any, data: st.DataObject
) -> None:
    keys = [key for key, _ in batch]
    values = [b"" if is_upsert else None for _, is_upsert in batch]
    places = {key: place for place, key in enumerate(sorted(stored))}
    kept = None if kept is None else kept[: len(places)]
    one, two = in_both_modes(lambda k: k.chain_changes(keys, values, places, kept, *flags))
    assert one == two
    assert one[0] == "returned"
    merged = one[1][0]
    row_count = len(places) + len(batch)
    numbers = struct.pack(f"<{row_count}q", *data.draw(st.lists(INT64, min_size=row_count, max_size=row_count)))
    bits = data.draw(st.binary(min_size=(row_count + 7) // 8, max_size=(row_count + 7) // 8))
    for function in range(1, 7):
        for name, arguments in (
            ("merge_ints", (merged, 16, function)),
            ("merge_ints", (merged, 64, function)),
            ("merge_floats", (merged, True, function)),
            ("merge_floats", (merged, False, function)),
            ("merge_choices", (merged, row_count, function)),
            ("merge_decimals", (merged[: len(merged) // 8 * 4], 5, 2, function)),
        ):
            _same_in_both_modes(name, (bytearray(numbers), bytearray(bits), *arguments))
    lengths = [abs(number) % 4 for number in struct.unpack(f"<{row_count}q", numbers)]
    offsets = struct.pack(f"<{row_count + 1}i", *(sum(lengths[:i]) for i in range(row_count + 1)))
    for size_max in (10**6, 5):
        _same_in_both_modes(
            "merge_texts", (bytes(range(sum(lengths))), offsets, bytearray(bits), merged, b"--", size_max)
        )


def _same_in_both_modes(name: str, arguments: tuple[Any, ...]) -> None:
    def run(module: Any) -> Any:
        own = copy.deepcopy(arguments)
        return getattr(module, name)(*own), own

    one, two = in_both_modes(run)
    assert str(one) == str(two)


@needs_both
def test_kernels_refuse_rows_that_do_not_come_before() -> None:
    for merged in (struct.pack("<2i", -1, 2), struct.pack("<2i", -2, 0), bytes(16)):
        one, two = in_both_modes(lambda k, m=merged: k.merge_ints(bytearray(24), bytearray(1), m, 64, 1))
        assert one == two
        assert one[0] == "ValueError"
