"""Quantiles of Student's t, for any real number of degrees of freedom from 1 on."""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, pi, sqrt, tan

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_HALVINGS = 54


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """The t that a Student variable with `degrees` of freedom stays below with `probability`.

    With t = √degrees · tan θ the density becomes Γ((ν+1)/2) / (√π Γ(ν/2)) · cos^(ν-1) θ (ν the degrees), which 64 points of
    Gauss and Legendre integrate to more than ten digits; θ is found by halving. Raises ValueError outside 0 < p < 1 and ν ≥ 1.
    """
    if not 0 < probability < 1 or not degrees >= 1:
        raise ValueError(f"no quantile of Student's t for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _mass(middle, degrees) > probability - 0.5 else (middle, high)
    return sqrt(degrees) * tan((low + high) / 2)


def _mass(angle: float, degrees: float) -> float:
    """The probability of an angle between 0 and `angle`."""
    scale = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(pi)
    near = min(angle, 40 / sqrt(degrees))  # all there is beyond is less than a double can hold
    return scale * near / 2 * float(_WEIGHTS @ np.cos(near / 2 * (_NODES + 1)) ** (degrees - 1))
