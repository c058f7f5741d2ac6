"""What is moved and what must arrive: one file per operation."""
