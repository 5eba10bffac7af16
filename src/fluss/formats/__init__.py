"""Bytes and Arrow: log batches, Arrow messages, rows, keys, bucketing and the compiled kernels behind them."""
