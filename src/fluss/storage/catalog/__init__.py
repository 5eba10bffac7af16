"""The catalog: databases, tables, partitions, schemas and ids, in memory and in SQLite.

`catalog` changes, `view` is what it shows, numbers that it reserves included, `db` its disk; `read` is for directories
without a server.
"""
