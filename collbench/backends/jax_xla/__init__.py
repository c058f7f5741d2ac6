"""What the backend `jax` is made of beside its own file: its steps, its arrays, and whether jax can be had here."""
