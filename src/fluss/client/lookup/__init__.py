"""Lookups, in the order of the way: lookuper, pending, the lookups of a table."""
