"""certificate.json: figures against their criteria, the verdict about each host, and what repeats them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec

from collbench.columns import PERCENT, column
from collbench.errors import FINE, NEGATIVE, NO_VERDICT
from collbench.records import Record

SCHEMA: Final = 1
PASS: Final = "PASS"
FAIL: Final = "FAIL"
INCOMPLETE: Final = "INCOMPLETE"
VETTED: Final = "vetted"
FAULTY: Final = "faulty"
NOT_VETTED: Final = "not vetted"
EXIT_CODES: Mapping[str, int] = {PASS: FINE, FAIL: NEGATIVE, INCOMPLETE: NO_VERDICT}
Word = Literal["PASS", "FAIL", "INCOMPLETE"]


class Judgement(Record, frozen=True, kw_only=True):
    """A figure, or a verdict of another command, against its criterion."""

    criterion: Annotated[str, column("The name of the criterion.", title="criterion")]
    verdict: Annotated[Word, column("PASS: the whole interval reaches it; FAIL: none of it does; INCOMPLETE: undecided.", title="verdict")]
    subject: Annotated[str, column("What is judged: a host, or an operation with its backend and size.", title="of")]
    percent: Annotated[float | None, column("The share of the expected bandwidth.", unit=PERCENT, title="% of expected")] = None
    low: Annotated[float | None, column("The lower end of its 95 % interval.", unit=PERCENT, title="from")] = None
    high: Annotated[float | None, column("The upper end of its 95 % interval.", unit=PERCENT, title="to")] = None
    required: Annotated[float | None, column("The share that the criterion requires.", unit=PERCENT, title="required")] = None
    measured_bytes_per_s: Annotated[float | None, column("The measured rate.", title="GB/s", drop=3)] = None
    expected_bytes_per_s: Annotated[float | None, column("The expected rate.", title="expected GB/s", drop=3)] = None
    case: Annotated[str, column("Of several figures of a criterion: which of them, such as an operation and a size.")] = ""
    hosts: Annotated[tuple[str, ...], column("The hosts that took part.", value=lambda record: " ".join(record.hosts))] = ()
    faulty: Annotated[tuple[str, ...], column("The hosts that the evidence names.", value=lambda record: " ".join(record.faulty))] = ()
    source: Annotated[str, column("The run or file with the evidence.")] = ""
    evidence: Annotated[str, column("The evidence, or what is missing.", title="evidence", wrap=True)] = ""
    command: Annotated[str, column("Where evidence is missing: the command that measures it.")] = ""


class HostVerdict(Record, frozen=True, kw_only=True):
    """The verdict about a host."""

    host: Annotated[str, column("The host.", title="host")]
    verdict: Annotated[Literal["vetted", "faulty", "not vetted"], column("The verdict.", title="verdict")]
    reasons: Annotated[tuple[str, ...], column("Why it is not vetted.", title="why", text=lambda host: "; ".join(host.reasons), wrap=True)]


class InputDigest(Record, frozen=True, kw_only=True):
    """A file that was read."""

    file: Annotated[str, column("The file, in the folder in which the command ran.", title="file")]
    sha256: Annotated[str, column("Its SHA-256, as sha256sum prints it.", title="SHA-256")]


class MeasuredRun(Record, frozen=True, kw_only=True):
    """A run, with what repeats it."""

    run: Annotated[str, column("Its folder.", title="run")]
    began: Annotated[str, column("When it began (UTC).", title="began (UTC)")]
    command: Annotated[str, column("Its command.", title="command", wrap=True)]
    versions: Annotated[str, column("The versions of collbench and of the backends' libraries.", title="versions", wrap=True)]


class Certificate(Record, frozen=True, kw_only=True):
    """The certificate. The same inputs give the same one: it has no time of its own."""

    schema: Literal[1] = SCHEMA
    verdict: Word
    title: str
    collbench: str
    command: str
    repeat: str
    criteria: dict[str, dict[str, Any]]
    criteria_files: dict[str, str]
    hosts: tuple[HostVerdict, ...]
    judgements: tuple[Judgement, ...]
    runs: tuple[MeasuredRun, ...]
    inputs: tuple[InputDigest, ...]

    @property
    def vetted(self) -> list[str]:
        """Return the hosts that passed."""
        return [host.host for host in self.hosts if host.verdict == VETTED]

    def answer(self) -> str:
        """Return the result in a sentence."""
        counts = f"{len(self.vetted)} of {len(self.hosts)} hosts vetted"
        faulty = ", ".join(host.host for host in self.hosts if host.verdict == FAULTY)
        return f"{self.title}: {self.verdict}; {counts}{f'; failed: {faulty}' if faulty else ''}"


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of certificate.json."""
    (_,), parts = msgspec.json.schema_components([Certificate], ref_template="#/$defs/{name}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:collbench:certificate:{SCHEMA}"}
    return {**head, **parts.pop("Certificate"), "title": "What `collbench certify` writes as certificate.json", "$defs": parts}
