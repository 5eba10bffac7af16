"""Rules for tables: options, changes of a table, merge rules, partitions by time, filters bound to a schema."""
