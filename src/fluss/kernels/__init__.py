"""What compiled loops over rows know of columns."""
