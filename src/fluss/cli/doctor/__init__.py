"""What `fluss doctor` finds: in the installation, on a connection, in a data directory."""
