"""Checks of `fluss doctor`: of the installation, of a connection, of a data directory.

`findings` says what a finding is; the other two look.
"""
