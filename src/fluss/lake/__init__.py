"""Tables in the lake: their history, written by tiering and read together with the fresh rows.

`format` is the seam to the format of the lake, and `iceberg` the one there is; `options` say where it is. `tiering`
writes, `union` reads, `maintenance` clears up; `status` and `drop` are for people.
"""
