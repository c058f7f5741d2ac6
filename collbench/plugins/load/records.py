"""Results of `collbench load`: a line per pattern and level of the aggressors in load.jsonl."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from collbench.results.estimate import Estimate
from collbench.results.folder import LOAD
from collbench.results.reader import Run, decode_record, read_lines, read_run

Verdict = Literal["interference", "no interference", "inconclusive"]
Side = Literal["victims", "aggressors"]
SHARES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999}


@dataclass(frozen=True)
class LoadQuantile:
    """A quantile of the victims' times in seconds, with aggressors off and on, and the factor between them.

    The factor is the geometric mean over pairs of blocks. The intervals of the factors of a row hold together with 95 %, those of the
    times with 95 % each. Values are None where the samples are not enough.
    """

    off: Estimate = field(default_factory=Estimate)
    on: Estimate = field(default_factory=Estimate)
    factor: Estimate = field(default_factory=Estimate)


@dataclass(frozen=True)
class SharedLink:
    """A link that bytes of victims and of aggressors use.

    kind   "host": the network interface of a host with ranks of both; "fabric": links between hosts, which the probe does not see
    place  the host, or "" for the fabric; name: of the interface, with the source of its rate; bytes_per_s: its payload rate, or None
    senders, receivers   the sides of which bytes leave the host, and reach it; () if unknown
    """

    kind: str
    place: str = ""
    name: str = ""
    bytes_per_s: float | None = None
    senders: tuple[Side, ...] = ()
    receivers: tuple[Side, ...] = ()

    @property
    def opposite(self) -> bool:
        """Whether one side only sends over the link and the other one only receives. A full-duplex link carries both at full rate."""
        return len(self.senders) == len(self.receivers) == 1 and self.senders != self.receivers


@dataclass(frozen=True)
class LoadRow:
    """The victims' times with one pattern and level of aggressors off and on.

    victim, size_bytes    the victims' operation and its size
    aggressors            the patterns that run at the same time, separated by "+"
    message_bytes         the size of an aggressor's message
    level                 the aggressors' target rate as a fraction of their own full rate: 0 (none: the control) to 1 (unpaced)
    preset                the name of the published test that was asked for, or ""
    victims, others       the ranks of the victims and of the aggressors; other_nodes: the nodes of the aggressors
    split                 how the ranks were divided: the text of --split, "" by node
    blocks                measured pairs of blocks; n_off, n_on: samples in all of them
    quantiles             by name ("p50", "p99", "p99_9")
    achieved              mean of the aggressors' rate while on, as a fraction of their full rate
    rate_bytes_per_s      that of the busiest host's aggressors, in the direction that moves more; full_bytes_per_s: alone and unpaced
    shared                the links that both use
    verdict, reason       the outcome, and why it is inconclusive (a fact as JSON)
    checked, wrong, wrong_detail   as in a row of cases
    """

    victim: str
    backend: str
    dtype: str
    size_bytes: int
    aggressors: str
    message_bytes: int
    level: float
    nodes: int
    preset: str = ""
    victims: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    other_nodes: int = 0
    split: str = ""
    na: str | None = None
    na_fact: dict[str, Any] | None = None
    blocks: int = 0
    n_off: int = 0
    n_on: int = 0
    quantiles: dict[str, LoadQuantile] = field(default_factory=dict)
    achieved: float | None = None
    rate_bytes_per_s: float | None = None
    full_bytes_per_s: float | None = None
    shared: tuple[SharedLink, ...] = ()
    verdict: Verdict = "inconclusive"
    reason: dict[str, Any] | None = None
    checked: int = 0
    wrong: int | None = None
    wrong_detail: str | None = None
    flags: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def factor(self) -> Estimate:
        """The factor of the median."""
        return self.quantiles["p50"].factor if "p50" in self.quantiles else Estimate()

    @property
    def percent_of_link(self) -> float | None:
        """The aggressors' rate as a percentage of the slowest shared link; None where no rate of one is known."""
        known = [link.bytes_per_s for link in self.shared if link.bytes_per_s]
        return 100 * self.rate_bytes_per_s / min(known) if known and self.rate_bytes_per_s is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        return asdict(self)


def load_from_json(values: dict[str, Any]) -> LoadRow:
    """Return the row in `values`, with every field checked; unknown keys are left out. Raises ValueError naming the first misfit."""
    return decode_record(values, LoadRow)


def read_load(run: Run | Path) -> tuple[dict[str, Any], list[LoadRow], list[str]]:
    """Return (run.json's "load", the rows up to the last complete one, what could not be read). Raises UsageError without a run."""
    run = read_run(run) if isinstance(run, Path) else run
    about, warnings = run.info.get("load"), list[str]()
    rows = list(read_lines(run.path / LOAD, load_from_json, warnings))
    return about if isinstance(about, dict) else {}, rows, warnings
