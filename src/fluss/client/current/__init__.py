"""Primary-key tables as they are now, or were at an offset, and their changes from there on.

`current_rows` reads them; `changes` goes on from there, and `rows_at` goes back.
"""
