"""Tables and their rules: what may be made, formats, lakes, metadata answers, and jobs that look after tables.

`rules` comes first for a new table, `formats` and `lake` are read from its definition; `auto_partition`, `backups` and
`tiering` work by the clock or when they are asked.
"""
