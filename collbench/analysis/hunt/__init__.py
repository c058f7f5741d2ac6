"""The search for slow nodes, paths and interfaces."""
