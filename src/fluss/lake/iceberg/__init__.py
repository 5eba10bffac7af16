"""The lake in Apache Iceberg, behind `fluss.lake.format`.

`catalog` finds tables, `table` reads and changes one, or a branch on which a round works unseen, `schema` says how
tables look there, and `guarded` has pyiceberg's catalogs, whose answers are data.
"""
