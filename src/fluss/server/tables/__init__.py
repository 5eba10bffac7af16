"""Tables and their rules: what may be made, lakes, metadata answers, and jobs that look after tables.

`rules` comes first for a new table, and reads definitions; `lake` has its lake and the queue of tables to tier; `jobs`
work by the clock or when they are asked.
"""
