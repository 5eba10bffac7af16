"""Changes of rows: `fold` says what a batch of puts does, and what a stretch of a changelog leaves.

`aggregation` merges the columns of rows where `fold` finds that they are to be merged.
"""
