"""Primary-key tables as they are now, or were at an offset, and their changes from there on."""
