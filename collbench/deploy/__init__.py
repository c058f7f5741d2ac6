"""Deployment: job files and their submission, templates, and draining of faulty nodes."""
