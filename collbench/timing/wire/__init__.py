"""The wire tools that operators trust, as processes: one file per tool, and what all of them have in common."""
