"""Results of measurements: rows and rounds, the folders that store them, and their readers."""
