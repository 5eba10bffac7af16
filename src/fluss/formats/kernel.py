"""The kernel in use: the compiled one where it was built, the plain one otherwise or when FLUSS_PURE=1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("FLUSS_PURE") == "1":
    from fluss.formats import _kernel as implementation
else:
    try:
        from fluss.formats import _kernel_c as implementation
    except ImportError:
        from fluss.formats import _kernel as implementation

COMPILED: bool = implementation.COMPILED
NAME: str = implementation.__name__
RowAppender = implementation.RowAppender
are_records_sound = implementation.are_records_sound
are_strings_sound = implementation.are_strings_sound
bucket_of = implementation.bucket_of
buckets = implementation.buckets
decode_aligned = implementation.decode_aligned
decode_arrays = implementation.decode_arrays
decode_columns = implementation.decode_columns
encode_aligned = implementation.encode_aligned
encode_arrays = implementation.encode_arrays
encode_columns = implementation.encode_columns
encode_values = implementation.encode_values
hash_key = implementation.hash_key
join_records = implementation.join_records
lake_buckets = implementation.lake_buckets
split_maps = implementation.split_maps
split_records = implementation.split_records
