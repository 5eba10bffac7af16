"""Lookups, in the order of the way: lookuper, keys, queue, the lookups of a table, rerouting, values."""
