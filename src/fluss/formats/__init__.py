"""Bytes and Arrow: log batches, Arrow messages, rows, keys, bucketing, and which kernels are in use.

`kernel` is how all others call the kernels, and `_kernel` lists the plain ones. `batches` are what travels and is
stored, `arrow` and `rows` what is in them, and `changelog` what changes mean.
"""
