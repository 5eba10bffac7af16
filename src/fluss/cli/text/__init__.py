"""Rows and names as text: what is read from files and typed, and what is printed."""
