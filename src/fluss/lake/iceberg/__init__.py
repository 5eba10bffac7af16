"""The lake in Apache Iceberg, behind `fluss.lake.format`.

`catalog` finds tables, `table` reads and changes one, `branch` has a round work unseen, `schema` says how tables look
there, and `guarded` has pyiceberg's catalogs, whose answers are data.
"""
