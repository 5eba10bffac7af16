"""The client's core: coroutines on one I/O loop per process, under the thin shells of `fluss.api`."""
