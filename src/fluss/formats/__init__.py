"""Bytes and Arrow: log batches, Arrow messages, rows, keys, bucketing, and which kernels are in use."""
