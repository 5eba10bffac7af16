"""Rows and names as text: what is read from files and typed, and what is printed.

`inputs` reads files, `coerce` fits their values to a table and reads names in arguments; `output` prints.
"""
