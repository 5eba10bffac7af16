"""The catalog: databases, tables, partitions, schemas and ids, in memory and in SQLite.

`catalog` changes, `view` is what it shows, `db` its disk; `row_ids` are numbers that it reserves, and `read` is for
directories without a server.
"""
