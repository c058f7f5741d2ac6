"""What was typed, turned into a request, one call and an exit code."""
