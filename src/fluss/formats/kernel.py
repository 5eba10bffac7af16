"""The kernel in use: the compiled one where it was built, the plain one otherwise or when FLUSS_PURE=1."""

# Small on purpose: the choice between two modules, and a list of names.

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
RecentRows = implementation.RecentRows
RowAppender = implementation.RowAppender
RowGate = implementation.RowGate
ScanRecord = implementation.ScanRecord
add_hashes = implementation.add_hashes
add_hashes_of_bytes = implementation.add_hashes_of_bytes
are_records_sound = implementation.are_records_sound
are_strings_sound = implementation.are_strings_sound
bucket_of = implementation.bucket_of
buckets = implementation.buckets
chain_changes = implementation.chain_changes
check_layout = implementation.check_layout
check_message = implementation.check_message
datetimes_of = implementation.datetimes_of
decode_aligned = implementation.decode_aligned
decode_arrays = implementation.decode_arrays
decode_columns = implementation.decode_columns
decode_values = implementation.decode_values
decoded_sizes = implementation.decoded_sizes
encode_aligned = implementation.encode_aligned
encode_arrays = implementation.encode_arrays
encode_columns = implementation.encode_columns
encode_values = implementation.encode_values
fold_changes = implementation.fold_changes
hash_key = implementation.hash_key
join_entries = implementation.join_entries
join_entry_lists = implementation.join_entry_lists
join_kv_records = implementation.join_kv_records
join_records = implementation.join_records
join_values = implementation.join_values
keys_in_order = implementation.keys_in_order
lake_buckets = implementation.lake_buckets
merge_choices = implementation.merge_choices
merge_decimals = implementation.merge_decimals
merge_floats = implementation.merge_floats
merge_ints = implementation.merge_ints
merge_texts = implementation.merge_texts
read_message = implementation.read_message
records_of_rows = implementation.records_of_rows
rows_in_order = implementation.rows_in_order
rows_of_columns = implementation.rows_of_columns
rows_of_schema = implementation.rows_of_schema
schema_ids_of = implementation.schema_ids_of
split_found = implementation.split_found
split_kv_records = implementation.split_kv_records
split_maps = implementation.split_maps
split_records = implementation.split_records
split_values = implementation.split_values
split_write = implementation.split_write
sum_hashes = implementation.sum_hashes
unset_bytes = implementation.unset_bytes
values_of_rows = implementation.values_of_rows
