"""Statistics in pure numpy: medians, launches and ratios with their intervals, drift, modes, segmented fits."""
