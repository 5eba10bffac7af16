"""Streams that are read: positions, limits, one reader for each generation of Spark, the lake first.

`reader` is what both generations share.
"""
