"""The gate: whether a cluster got slower than a baseline of allocations explains."""

import sys

from collbench import CallablePackage

sys.modules[__name__].__class__ = CallablePackage  # `collbench.gate(…)` is a function of the API
