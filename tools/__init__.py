"""Tools of the build and of contributors; docs/hacking.md says when each is used."""
