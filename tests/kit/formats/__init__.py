"""Batches, rows and kernels of tests: values of every type, bytes that are known, both kernels side by side."""
