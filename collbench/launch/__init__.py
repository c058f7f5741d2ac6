"""Detection of the launcher that started this process, and the start of ranks without one."""
