"""What `collbench trace` puts into the Python processes of a job; it runs without collbench."""
