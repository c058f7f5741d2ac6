"""A value with its confidence interval, as stored records of several kinds have it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from collbench.columns import column

_NotNegative = Annotated[float, Meta(ge=0)] | None


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % confidence interval; None where it is unknown."""

    value: Annotated[_NotNegative, column("{}", key="")] = None
    low: Annotated[_NotNegative, column("{} The lower end of its 95 % confidence interval.")] = None
    high: Annotated[_NotNegative, column("{} The upper end of its 95 % confidence interval.")] = None
