"""Connections and their requests: frames in, logins, routes, turns, answers out, and what clients may cost.

In the order of a request: `connection`, `session`, `routes`, `context`, which has the shapes of answers. `logins` and
`users` say who may ask, `limits` and `budgets` how much.
"""
