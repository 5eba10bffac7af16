"""Values in other forms: types and filters as text, JSON and Arrow, tables as HTML."""
