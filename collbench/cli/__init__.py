"""The command line: parse the arguments into a request, run it, and return an exit code."""
