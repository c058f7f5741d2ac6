"""Which launcher started this process, and how to start ranks without one."""
