"""The backend nccl: NCCL called by function pointer."""
