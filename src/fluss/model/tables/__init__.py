"""Rules for tables: options, merge rules, partitions by time, filters bound to a schema.

`options` first: the others are what some of the options mean.
"""
