"""Rows and names as text: what is read from files and typed, what is printed."""
