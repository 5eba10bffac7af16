"""The real clients of the protocol, driven step by step in processes of their own."""
