"""Who moves it: one file per backend."""
