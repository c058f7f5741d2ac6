"""Readers of what other tools print: each makes runs of our own form from it, and says what the tool did not tell."""
