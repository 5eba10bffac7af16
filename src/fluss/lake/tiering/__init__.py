"""Tiering: what is new in logs is moved to the lake.

`service` has many tables tiered, `round` one of them once, `plan` says what there is to do, tasks do it in `executors`,
and `registration` tells the server.
"""
