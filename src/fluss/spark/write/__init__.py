"""Writes, batch and stream, in the order of the way: options and plan, writer, tasks.

`writer` is what Spark calls, on the driver and in tasks.
"""
