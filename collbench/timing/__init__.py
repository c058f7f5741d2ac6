"""How it is timed: the loops, the synchronisation, warm-up and stop."""
