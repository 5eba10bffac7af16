"""Values without I/O: what a table, a bucket, an offset or an error is.

Begin with `types`, `schema` and `descriptor`, then `infos`, `paths` and `offsets`. `errors` and `config` are used
everywhere.
"""
