"""Writes, batch and stream, in the order of the way: options and plan, writer, tasks."""
