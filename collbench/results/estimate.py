"""A value with its confidence interval, as stored records of several kinds have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

_NotNegative = Annotated[float, Meta(ge=0)] | None


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval; None where it is unknown."""

    value: _NotNegative = None
    low: _NotNegative = None
    high: _NotNegative = None
