"""The kernels as plain Python, under the names that the compiled ones have in `_kernel_c`."""

# Small on purpose: it is a list of names.

from __future__ import annotations

from fluss.kernels.arrow_messages import are_strings_sound, check_layout, check_message, decoded_sizes, read_message
from fluss.kernels.changes import (
    chain_changes,
    fold_changes,
    merge_choices,
    merge_decimals,
    merge_floats,
    merge_ints,
    merge_texts,
)
from fluss.kernels.hashes import add_hashes, add_hashes_of_bytes, bucket_of, buckets, hash_key, lake_buckets, sum_hashes
from fluss.kernels.kv_records import (
    decode_values,
    encode_values,
    join_kv_records,
    join_values,
    keys_in_order,
    rows_in_order,
    rows_of_schema,
    schema_ids_of,
    split_kv_records,
    split_values,
    values_of_rows,
)
from fluss.kernels.log_records import (
    ScanRecord,
    are_records_sound,
    join_records,
    records_of_rows,
    rows_of_columns,
    split_records,
    unset_bytes,
)
from fluss.kernels.nested_rows import decode_aligned, decode_arrays, encode_aligned, encode_arrays, split_maps
from fluss.kernels.primitives import datetimes_of
from fluss.kernels.protobuf import join_entries, join_entry_lists, split_found, split_write
from fluss.kernels.recent_rows import RecentRows
from fluss.kernels.row_appender import RowAppender, RowGate
from fluss.kernels.row_decoding import decode_columns
from fluss.kernels.row_encoding import encode_columns

COMPILED = False

__all__ = [
    "COMPILED",
    "RecentRows",
    "RowAppender",
    "RowGate",
    "ScanRecord",
    "add_hashes",
    "add_hashes_of_bytes",
    "are_records_sound",
    "are_strings_sound",
    "bucket_of",
    "buckets",
    "chain_changes",
    "check_layout",
    "check_message",
    "datetimes_of",
    "decode_aligned",
    "decode_arrays",
    "decode_columns",
    "decode_values",
    "decoded_sizes",
    "encode_aligned",
    "encode_arrays",
    "encode_columns",
    "encode_values",
    "fold_changes",
    "hash_key",
    "join_entries",
    "join_entry_lists",
    "join_kv_records",
    "join_records",
    "join_values",
    "keys_in_order",
    "lake_buckets",
    "merge_choices",
    "merge_decimals",
    "merge_floats",
    "merge_ints",
    "merge_texts",
    "read_message",
    "records_of_rows",
    "rows_in_order",
    "rows_of_columns",
    "rows_of_schema",
    "schema_ids_of",
    "split_found",
    "split_kv_records",
    "split_maps",
    "split_records",
    "split_values",
    "split_write",
    "sum_hashes",
    "unset_bytes",
    "values_of_rows",
]

ScanRecord.__module__ = __name__  # under which it has been pickled
