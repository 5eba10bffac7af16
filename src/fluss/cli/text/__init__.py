"""Rows and names as text: what is read from files and typed, and what is printed.

`inputs` reads files and `coerce` fits their values to a table; `output` prints; `names` is for arguments.
"""
