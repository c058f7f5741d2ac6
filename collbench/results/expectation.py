"""What a model expects of a row's size: the time, the percentage of it that the row reaches, and the origin; or why there is no model.

`analysis/expected_time.py` derives it from a finished run. It is not stored.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from collbench.reason import Fact
from collbench.units import format_bytes, format_percent, format_rate, format_size


class FromNcclLog(Fact, frozen=True):
    """The expected time is from the table of latencies and bandwidths that NCCL wrote into the run's log (subsystem TUNING).

    By it NCCL selects algorithm and protocol. Healthy machines are slower than the table at small and medium sizes.
    """

    text = "NCCL's table in the log ({choice})"
    choice: str


class FromNcclConstants(Fact, frozen=True):
    """The expected time is from the constants in NCCL's source, for the links of the machine of the run.

    By them NCCL selects algorithm and protocol. Healthy machines are slower than the constants at small and medium sizes.
    """

    text = "NCCL's constants ({choice})"
    choice: str


class FromRunSizes(Fact, frozen=True):
    """The expected time is on the line through the times of the smallest and the largest reliable size of this run."""

    text = "this run's {smallest:size} and {largest:size}"
    smallest: int
    largest: int


class FromRunAndReference(Fact, frozen=True):
    """The expected time is that of this run's smallest reliable size, and the other bytes at the expected rate of the links.

    The run exceeds that rate, so its own largest size is not the base.
    """

    text = "this run's {smallest:size} and {limited_by}"
    smallest: int
    limited_by: str


class SmallestOfRun(Fact, frozen=True):
    """The expected times of this series begin at this row, the smallest reliable size. It has no percentage: it cannot prove itself."""

    text = "this run's smallest size"


class LargestOfRun(Fact, frozen=True):
    """The rate of the expected times of this series is from this row, the largest reliable size. It cannot prove itself."""

    text = "this run's largest size"


class UnreliableTime(Fact, frozen=True):
    """The row has an expected time and no percentage: its measured time is unreliable, or not one number (bimodal, drift)."""

    text = "not compared: the measured time is unreliable"


class TooFewSizes(Fact, frozen=True):
    """No model: an expected time needs three reliable sizes of a series, two for the line and one between them."""

    sizes: int

    def render(self) -> str:
        """Return "no model: 2 reliable sizes, and 3 are needed"."""
        return f"no model: {self.sizes or 'no'} reliable size{'' if self.sizes == 1 else 's'}, and 3 are needed"


class OutsideOfSizes(Fact, frozen=True):
    """No model: the size is smaller or larger than all reliable sizes of its series."""

    text = "no model: not between {smallest:size} and {largest:size}, the reliable sizes"
    smallest: int
    largest: int


class OffTheLine(Fact, frozen=True):
    """No model: the times of these sizes are not on the line through the smallest and the largest size of the run.

    The usual cause is that the library uses another algorithm or protocol at these sizes, or that they fit into a cache. `first` and
    `last` are the ends of the stretch of sizes, `factor` is the time of this row divided by that of the line.
    """

    first: int
    last: int
    factor: float

    def render(self) -> str:
        """Return "no model: 4 KiB to 1 MiB off the line, 2.1 times its time"."""
        sizes = format_size(self.first) if self.first == self.last else f"{format_size(self.first)} to {format_size(self.last)}"
        return f"no model: {sizes} off the line, {self.factor:.2g} times its time"


class NotSaturated(Fact, frozen=True):
    """The largest size of a run moves clearly less than larger ones would, by the fit of latency and rate to its sizes.

    Percentages of the expected bandwidth are then too low for a verdict on the machine. Compare what larger messages approach, or
    use larger sizes. A rank's part of a collective is size / ranks, so jobs with many ranks need larger sizes. Rates are in bytes
    per second.
    """

    operation: str
    backend: str
    size_bytes: int
    ranks: int
    reached: float
    approached: float
    expected: float

    def render(self) -> str:
        """Return "allreduce over nccl: not saturated at 16 GiB, 11.4 MiB per rank: 406 of the 432 GB/s that …"."""
        where = f"{self.operation} over {self.backend}: not saturated at {format_size(self.size_bytes)}"
        share = format_percent(100 * self.approached / self.expected)
        rates = f"{format_rate(self.reached)} of the {format_rate(self.approached)} GB/s that larger messages approach"
        return f"{where}, {format_bytes(self.size_bytes / self.ranks)} per rank: {rates} ({share} of expected)"


ModelOrigin = FromNcclLog | FromNcclConstants | FromRunSizes | FromRunAndReference | SmallestOfRun | LargestOfRun | UnreliableTime
NoModelReason = TooFewSizes | OutsideOfSizes | OffTheLine


class Expectation(msgspec.Struct, frozen=True):
    """What a model expects of a row's size.

    origin                     the model; or why there is none, and all other fields are then None
    expected_time_s            the expected time
    percent_of_expected_time   expected time / measured time, in percent: 80 is slower than expected; None for a row of which the model is
                               made, and for an unreliable one; low and high: at the ends of the interval of the measured time
    """

    origin: ModelOrigin | NoModelReason
    expected_time_s: float | None = None
    percent_of_expected_time: float | None = None
    percent_of_expected_time_low: float | None = None
    percent_of_expected_time_high: float | None = None

    @property
    def expected_time_origin(self) -> str:
        """The origin as text."""
        return self.origin.render()

    def as_json(self) -> dict[str, Any]:
        """Return it as values for JSON, the origin as a fact and as text."""
        from collbench.reason import as_json

        values = asdict(self)
        return values | {"origin": as_json(self.origin), "expected_time_origin": self.expected_time_origin}
