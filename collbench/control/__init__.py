"""The control plane: connections between the ranks of a launch, separate from the measured path."""
