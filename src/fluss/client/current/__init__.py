"""Primary-key tables as they are now, or were at an offset, and their changes from there on.

`current_rows` reads them, `changelog` folds what has changed since, and `changes` and `rows_at` are made of both.
"""
