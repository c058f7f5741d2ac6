"""What training moves."""
