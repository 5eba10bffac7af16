"""Batch reads, in the order of the way: options, reader, plan, parts of a log and of the lake.

`reader` is what Spark calls, on the driver and in tasks.
"""
