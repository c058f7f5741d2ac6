"""One file per kind of launcher."""
