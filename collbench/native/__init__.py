"""The C sources of the timing loop, the shared object built from them, and its loader."""
