"""Results of `collbench load`: a line per pattern and level of the aggressors in load.jsonl."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from collbench.columns import FLAGS, column, figure
from collbench.reason import decode_or_text
from collbench.records import Record
from collbench.results.estimate import Estimate

Verdict = Literal["interference", "no interference", "inconclusive"]
Side = Literal["victims", "aggressors"]
SHARES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999}


class LoadQuantile(msgspec.Struct, frozen=True):
    """A quantile of the victims' times in seconds, with aggressors off and on, and the factor between them.

    The factor is the geometric mean over pairs of blocks. The intervals of the factors of a row hold together with 95 %, those of the
    times with 95 % each. Values are None where the samples are not enough.
    """

    off: Annotated[Estimate, column("{} of the victims' times with aggressors off.", key="off_s", title="{} off µs")] = msgspec.field(
        default_factory=Estimate
    )
    on: Annotated[Estimate, column("{} of the victims' times with aggressors on.", key="on_s", title="{} on µs")] = msgspec.field(
        default_factory=Estimate
    )
    factor: Annotated[
        Estimate,
        column("{} of the victims' times, on / off: a geometric mean; the three intervals hold together.", title="{} factor"),
    ] = msgspec.field(default_factory=Estimate)


class SharedLink(msgspec.Struct, frozen=True):
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


_QUANTILES = {
    "p50": column("The median", title="p50", drop=1),
    "p99": column("The 99th percentile", title="p99", drop=5),
    "p99_9": column("The 99.9th percentile", title="p99.9", drop=5),
}


class LoadRow(Record, frozen=True, kw_only=True):
    """The victims' times with one pattern and level of aggressors off and on.

    victims and others are the ranks of the victims and of the aggressors; split is "" by node, preset "" without a published test. level is
    1 for aggressors that are not paced. verdict is "inconclusive" for an n/a row, reason and na_fact are facts as JSON. checked, wrong
    and wrong_detail are as in a row of cases.
    """

    victim: Annotated[str, column("The operation that the victims time.")]
    backend: Annotated[str, column("The library that moves the data: nccl, mpi, gloo, socket, zmq and others.")]
    dtype: Annotated[str, column("The data type of the elements: float32, bfloat16, int8 and others.")]
    size_bytes: Annotated[int, column("The size of the victims' operation.")]
    aggressors: Annotated[str, column("The patterns that the aggressors send at the same time, separated by +.", title="aggressors")]
    message_bytes: Annotated[int, column("The size of a message of the aggressors.")]
    level: Annotated[
        float, column("The target rate of the aggressors as a share of what they reach alone; 0: none, the control.", title="target")
    ]
    nodes: Annotated[int, column("The number of hosts on which these ranks run.")]
    preset: Annotated[str, column("The name of the published test.")] = ""
    victims: Annotated[tuple[int, ...], column("The number of victim ranks.", value=lambda row: len(row.victims), type=int)] = ()
    others: Annotated[
        tuple[int, ...], column("The number of aggressor ranks.", key="aggressor_ranks", value=lambda row: len(row.others), type=int)
    ] = ()
    other_nodes: Annotated[int, column("The number of nodes with aggressor ranks.", key="aggressor_nodes")] = 0
    split: Annotated[str, column("How the ranks were divided: the text of --split; missing: by node.")] = ""
    na: Annotated[str | None, column("Why it was not measured.")] = None
    na_fact: dict[str, Any] | None = None
    blocks: Annotated[int, column("The number of pairs of blocks, with aggressors off and on.")] = 0
    n_off: Annotated[int, column("The number of samples with aggressors off.")] = 0
    n_on: Annotated[int, column("The number of samples with aggressors on.")] = 0
    quantiles: Annotated[dict[str, LoadQuantile], column("", key="", parts=_QUANTILES)] = msgspec.field(default_factory=dict)
    achieved: Annotated[
        float | None, column("The rate of the aggressors while they sent, as a share of what they reach alone.", title="achieved", drop=4)
    ] = None
    rate_bytes_per_s: Annotated[float | None, column("The rate of the aggressors of the busiest host.", title="GB/s", drop=6)] = None
    full_bytes_per_s: Annotated[float | None, column("The rate that they reach alone.")] = None
    shared: Annotated[tuple[SharedLink, ...], column("The links that both sides use.", value=lambda row: row.shared_text, type=str)] = ()
    verdict: Annotated[
        Verdict,
        column(
            "The outcome: interference, no interference or inconclusive; missing for n/a.",
            title="result",
            value=lambda row: row.verdict if row.na is None else None,
            after="na",
        ),
    ] = "inconclusive"
    reason: Annotated[
        dict[str, Any] | None,
        column(
            "The reason why the row is inconclusive.",
            value=lambda row: row.reason_text,
            after="verdict",
            type=str,
        ),
    ] = None
    checked: Annotated[int, column("The number of iterations of which the data was verified.")] = 0
    wrong: Annotated[
        int | None, column("The number of wrong elements in these iterations; missing if none was verified.", title="wrong", drop=1)
    ] = None
    wrong_detail: Annotated[str | None, column("The first wrong element, with the expected and the received value.")] = None
    flags: Annotated[tuple[str, ...], column("Codes of what makes a row less reliable.", unit=FLAGS)] = ()
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def reason_text(self) -> str:
        """The reason why the row is inconclusive, in words; "" without one."""
        from collbench.plugins.load.interference import LoadInconclusive

        return str(decode_or_text(self.reason, LoadInconclusive)) if self.reason else ""

    @property
    def shared_text(self) -> str:
        """The links that both sides use, in words; "" for none."""
        return ", ".join(f"{link.place} {link.name}".strip() or link.kind for link in self.shared)

    @property
    def factor(self) -> Estimate:
        """The factor of the median."""
        return self.quantiles["p50"].factor if "p50" in self.quantiles else Estimate()

    @property
    @figure("The rate of the aggressors as a share of the slowest shared link.", after="full_bytes_per_s")
    def percent_of_link(self) -> float | None:
        """The aggressors' rate as a percentage of the slowest shared link; None where no rate of one is known."""
        rates = [link.bytes_per_s for link in self.shared if link.bytes_per_s]
        return 100 * self.rate_bytes_per_s / min(rates) if rates and self.rate_bytes_per_s is not None else None
