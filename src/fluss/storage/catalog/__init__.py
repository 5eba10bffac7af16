"""The catalog: databases, tables, partitions, schemas and ids, in memory and in SQLite."""
