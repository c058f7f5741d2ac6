"""NCCL by function pointer: the backend, and what it needs of the library."""
