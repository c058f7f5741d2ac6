"""The backend ucc: the Unified Collective Communication library."""
