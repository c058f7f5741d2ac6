"""The figures of the first screen: peaks as a table and as bars."""
