"""Who is the sick one."""
