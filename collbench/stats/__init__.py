"""Pure numpy: quantiles, intervals, effective sample sizes."""
