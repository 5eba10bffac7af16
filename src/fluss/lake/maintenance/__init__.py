"""Upkeep of the lake: `inventory` says what there is of a table, `cleanup` removes what nobody needs."""
