"""Connections and their requests: frames in, logins, routes, turns, answers out, and what clients may cost.

In the order of a request: `connection`, `session`, `routes` and `resources`, `context`, `answers`. `logins` and `users`
say who may ask, and `limits`, `budgets`, `patience` and `turns` how much. `concurrent_reply` is for what takes long.
"""
