"""Communication of training steps: workloads ("regimes"), the user's model, and the resulting exchanges."""
