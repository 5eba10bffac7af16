"""Streams that are read: positions, limits, one reader for each generation of Spark, the lake first.

`offsets` are what a checkpoint keeps, and `reader` is what both generations share.
"""
