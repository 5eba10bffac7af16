"""Values in other forms: types and filters as text, JSON and Arrow, tables as HTML.

`type_json` is how definitions travel and are stored; `arrow_types` and `html` are imported when they are used.
"""
