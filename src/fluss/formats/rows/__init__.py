"""Rows as bytes and as Python values: codecs, keys, stored values, partitions and buckets of rows.

`specs` says what kernels know of a column, and `codecs` are the formats. `keys` and `values` use them; `python_rows`
and `records` are for rows of programs, `digest` for staged ones.
"""
