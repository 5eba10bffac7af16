"""Values in other forms: types and filters as text and Arrow.

`arrow_types` is imported when it is used: it needs pyarrow.
"""
