"""Readers for the output of external tools: each returns runs in collbench's form, and lists what the output does not contain."""
