"""What it could do: the ceilings that a measured rate is set against."""
