"""Looking rows up: the lookuper, keys, queues of a table's lookups, values."""
