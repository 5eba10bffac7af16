"""Compiled loops over rows, and the same as plain Python.

Each module is a subject, in Cython's pure-Python mode. Plain Python imports them as they are; `setup.py` makes one
compile unit of them, so that a helper which several of them use is inlined everywhere. What is in use, compiled or not,
is in `fluss.formats.kernel`. Read `codes` (what kernels know of a column) and `primitives` first; then rows on the way
in (`row_columns`, `row_appender`), rows as bytes (`row_encoding`, `row_decoding`, `nested_rows`), what rows lie in
(`log_records`, `kv_records`, `protobuf`, `arrow_messages`), and what is done with them (`hashes`, `recent_rows`,
`changes`).

Rules that keep one source for both: a variable typed as a pointer is, uncompiled, a memoryview or bytearray, so only
`base[index]` is used, never pointer arithmetic. The few things that C and Python do differently are in the small
helpers of `primitives`. Every range and type check is explicit, because C would wrap where Python would
not. Columns are processed one at a time: a size pass, a prefix sum, a write pass. When they are compiled all modules
share one scope, so no two of them may give the same name, at their top, to different things.
"""
