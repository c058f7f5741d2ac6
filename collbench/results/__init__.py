"""What was measured: the row and the folder it is kept in."""
