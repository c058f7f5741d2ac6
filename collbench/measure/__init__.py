"""Measurement of cases: timing loops, sampling, verification, references and limits, and evidence from each host's
counters.
"""

import sys

from collbench import CallablePackage

sys.modules[__name__].__class__ = CallablePackage  # `collbench.measure(…)` is a function of the API
