"""The ranks together: the control plane, apart from the measured path."""
