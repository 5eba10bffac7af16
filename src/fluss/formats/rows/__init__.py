"""Rows as bytes and as Python values: codecs, keys, stored values, partitions and buckets of rows."""
