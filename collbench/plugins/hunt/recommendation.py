"""recommendation.json: a stable code for each kind of fault, and the exact command that drains a node.

`Recommendation` declares the file: what is written, recommendation.schema.json, and what is accepted when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.hunt.managers import (
    KUBERNETES,
    SLURM,
    drain_command,
    in_pod,
    is_name,
    line,
    manager_of,
    node_names,
    pod_lookup_line,
    reason_of,
    undo_command,
)
from collbench.plugins.hunt.protocol import AT_BOTH_ENDS, BY_MESSAGES, CONFIRMED, TRUNK, HuntVerdict, Suspect
from collbench.reason import CommandText
from collbench.results.folder import utc
from collbench.results.store import read_object, replace, to_page
from collbench.units import format_percent

CODES: dict[str, Any] = {
    "node": "CB6101",
    "sender": "CB6102",
    "receiver": "CB6103",
    "latency": "CB6104",
    "path": "CB6105",
    "inside": "CB6106",
    "scale": "CB6107",
    TRUNK: "CB6108",
}
SCHEMA, FILE = 1, "recommendation.json"
_REACHES = {
    "node": "sends and receives at {} of the others",
    "sender": "sends at {} of the others",
    "receiver": "receives at {} of the others",
    "path": "reaches {} of what their other pairs do",
    "inside": "reaches {} among its own ranks of what others do among theirs",
    "scale": "reaches {} of the others in larger groups",
}
# Limits that keep the file below a few MB. It contains the number of suspects left out.
_MOST_SUSPECTS, _MOST_SENTENCES, _LONGEST_SENTENCE, _LONGEST_NAME = 1000, 20, 500, 300


class _Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of recommendation.json."""


def _means(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


_Code = Literal["CB6101", "CB6102", "CB6103", "CB6104", "CB6105", "CB6106", "CB6107", "CB6108"]
_NodeCode = Literal["CB6101", "CB6102", "CB6103", "CB6104", "CB6106", "CB6107"]
_Time = Annotated[str, _means("UTC, ISO 8601.", extra_json_schema={"format": "date-time"})]


class RecommendedSuspect(_Part):
    """A suspect with what to do about it."""

    places: Annotated[list[str], _means('"node07" or "rank 3 (node07)"; two of a path; of a trunk those of both groups.', min_length=1)]
    hosts: Annotated[list[str], _means("The hosts of the places.", min_length=1)]
    state: Literal["confirmed", "cleared", "inconclusive"]
    code: Annotated[_Code, _means("`collbench explain CODE` has the page.")]
    kind: Literal["node", "sender", "receiver", "latency", "path", "inside", "scale", "trunk"]
    ratio: Annotated[float | None, _means("The rate as a share of that of the others; for a latency, the inverse of the ratio of times.")]
    low: Annotated[float | None, _means("The ratio's 95 % interval.")]
    high: float | None
    part: Annotated[str, _means('The part that isolation found, or the sentence about a trunk; "": none.')]
    partners: Annotated[list[str], _means("The partners of the control measurements.")]
    evidence: Annotated[list[str], _means("What was measured, a sentence each.")]
    advice: str


class DrainLines(_Part):
    """The command lines that drain a node and return it to service."""

    line: str
    undo: str


class Drain(_Part):
    """The commands that drain a confirmed node and return it to service, or why it has none."""

    host: str
    node: Annotated[str | None, _means("Its name in the manager; null: unknown, see no_line.")]
    code: _NodeCode
    reason: Annotated[str, Meta(pattern=r"^\[collbench\] CB61", max_length=212)]
    line: Annotated[str | None, _means("Drains it.")]
    undo: Annotated[str | None, _means("Returns it to service.")]
    if_slurm: Annotated[DrainLines | None, _means("The commands if the manager is unknown.")]
    if_kubernetes: DrainLines | None
    no_line: Annotated[str | None, _means("Why the command is missing.")]
    look_up: Annotated[str | None, _means("The command that prints the node of a pod.")]


class AppliedDrain(_Part):
    """What `--apply` did about a node."""

    node: str
    action: Annotated[Literal["begun", "drained", "left", "failed"], _means("begun: it was asked for, and what came of it was not noted.")]
    why: str
    line: str | None
    undo: Annotated[str | None, _means("Of one that is drained, or may be, the line that brings it back.")]
    when: _Time


class Recommendation(_Part):
    """What to do about the nodes and paths of a hunt. null is unknown, or none."""

    schema: Literal[1]
    result: Literal["confirmed", "nobody", "no verdict"]
    when: _Time
    run: Annotated[str, _means("The run's folder.")]
    allocation: str | None
    manager: Annotated[Literal["slurm", "kubernetes"] | None, _means("That of the nodes; null: unknown, and there are lines for both.")]
    no_verdict: Annotated[str | None, _means("Why there is not enough evidence for a verdict.")]
    no_drain: Annotated[str | None, _means("Why no node may be drained.")]
    notes: Annotated[list[str], _means("What is unknown, and why, a sentence each.")]
    suspects: Annotated[list[RecommendedSuspect], _means("The confirmed ones first, the worst first.")]
    left_out: Annotated[int, _means("The number of further suspects.", ge=0)]
    drains: Annotated[list[Drain], _means("For each confirmed node, the commands that drain it and return it to service.")]
    applied: Annotated[list[AppliedDrain], _means("What `--apply` did.")]
    refused: Annotated[str | None, _means("Why `--apply` drained no node.")]


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of recommendation.json: that of `Recommendation`, and when it has no drains."""
    _, parts = msgspec.json.schema_components([Recommendation], ref_template="#/$defs/{name}")
    no_drains = {"properties": {"drains": {"maxItems": 0}, "applied": {"maxItems": 0}}}
    conditions = ({"result": {"enum": ["nobody", "no verdict"]}}, {"no_drain": {"type": "string"}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:collbench:recommendation:{SCHEMA}",
        **parts.pop("Recommendation"),
        "title": "What `collbench hunt` writes as recommendation.json",
        "allOf": [{"if": {"properties": condition}, "then": no_drains} for condition in conditions],
        "$defs": parts,
    }


class HuntSummary(msgspec.Struct, frozen=True):
    """The hunt that a recommendation is based on.

    run         its folder
    allocation  its name; None if it has none
    manager     "slurm", "kubernetes", or "" where it is unknown; then the commands for both are written
    nodes       by host the manager's name of its node (`node_names`); "" where the ranks of a host disagree
    pods        whether ranks run in pods, where a host name is not the name of a node
    no_drain    why no node may be drained, for any verdict; "": nodes may be drained
    when        UTC, ISO 8601; "": now
    """

    run: Path
    allocation: str | None = None
    manager: str = ""
    nodes: Mapping[str, str] = msgspec.field(default_factory=dict)
    pods: bool = False
    no_drain: str = ""
    when: str = ""

    @classmethod
    def here(
        cls, run: Path, env: Mapping[str, str], names: Iterable[tuple[str, str | None]], *,
        allocation: str | None = None, manager: str = "", no_drain: str = "",
    ) -> HuntSummary:  # fmt: skip
        """Return the summary for this launch. names: (host, `node_here`) of each rank; manager: the result of `check_apply`."""
        return cls(run, allocation, manager or manager_of(env), node_names(names), in_pod(env), no_drain)


def recommendation(verdict: HuntVerdict, about: HuntSummary) -> dict[str, Any]:
    """Return recommendation.json, see `Recommendation`. Only confirmed faults in a node have commands that drain."""
    hosts = verdict.hosts or verdict.names
    suspects = []
    drains: dict[str, Drain] = {}  # by node, which several pods may share; its first suspect, the worst, gives the reason
    for suspect in verdict.suspects[:_MOST_SUSPECTS]:
        places = [_name(verdict.names[place]) for place in suspect.places]
        suspects.append(
            RecommendedSuspect(
                places=places,
                hosts=list(dict.fromkeys(_name(hosts[place]) for place in suspect.places)),
                state=suspect.state,  # type: ignore[arg-type]
                code=CODES[suspect.kind],
                kind=suspect.kind,  # type: ignore[arg-type]
                ratio=suspect.ratio if isfinite(suspect.ratio) else None,
                low=suspect.low,
                high=suspect.high,
                part=_name(str(suspect.part or "")),
                partners=[_name(verdict.names[place]) for place in suspect.partners[:_MOST_SENTENCES]],
                evidence=[_sentence(str(fact)) for fact in suspect.evidence[:_MOST_SENTENCES]],
                advice=_advice(suspect, places),
            )
        )
        if suspect.state == CONFIRMED and suspect.kind not in AT_BOTH_ENDS:
            for place in suspect.places:
                drain = _drain(hosts[place], suspect, about)
                drains.setdefault(drain.node or f"host {drain.host}", drain)
    may_drain = verdict.result == CONFIRMED and not about.no_drain
    document: dict[str, Any] = msgspec.to_builtins(
        Recommendation(
            schema=SCHEMA,  # type: ignore[arg-type]
            result=verdict.result,  # type: ignore[arg-type]
            when=about.when or utc(),
            run=printable(str(about.run.resolve()), 4096),
            allocation=_name(about.allocation) if about.allocation else None,
            manager=about.manager or None,  # type: ignore[arg-type]
            no_verdict=_sentence(str(verdict.no_verdict)) if verdict.no_verdict else None,
            no_drain=_sentence(about.no_drain) if about.no_drain else None,
            notes=[_sentence(str(note)) for note in verdict.notes[:_MOST_SENTENCES]],
            suspects=suspects,
            left_out=len(verdict.suspects) - len(suspects),
            drains=list(drains.values()) if may_drain else [],
            applied=[],
            refused=None,
        )
    )
    return document


def store(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write recommendation.json into the run's folder, atomically, and return its path. Raises OSError; the old file then stays."""
    replace(folder / FILE, to_page(content))
    return folder / FILE


def read(folder: Path) -> dict[str, Any] | None:
    """Return the recommendation in a run's folder, None if there is none.

    The folder may come from elsewhere, so a command is accepted only if it is exactly what collbench writes for that node. Raises
    UsageError where the file cannot be read, does not fit recommendation.schema.json, or has other commands.
    """
    try:
        content: dict[str, Any] = read_object(folder / FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{folder / FILE}: cannot be read ({why}): remove it, or run the hunt again") from error
    from jsonschema import Draft202012Validator

    checks = Draft202012Validator(schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    misfit = next(iter(checks.iter_errors(content)), None)
    problem = ""
    if misfit is not None:
        problem = _name(f"{'.'.join(map(str, misfit.absolute_path)) or 'it'}: {misfit.message}")
    elif not all(text == printable(text, len(text)) for text in _texts(content)):
        problem = "a text contains control characters"
    elif not _has_known_commands(content):
        problem = "a command does not belong to its node"
    if problem:
        raise UsageError(f"{folder / FILE}: does not fit recommendation.schema.json: {problem}; remove it, or run the hunt again")
    return content


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _has_known_commands(content: Mapping[str, Any]) -> bool:
    """Return whether all commands are exactly those for their node and reason."""
    if not all(_is_known(drain, content["manager"]) for drain in content["drains"]):
        return False
    drained = {None, *(drain["line"] for drain in content["drains"])}
    for entry in content["applied"]:
        if entry["line"] not in drained:
            return False
        if entry["undo"] is not None:
            if not is_name(entry["node"]):
                return False
            if entry["undo"] not in [line(undo_command(manager, entry["node"])) for manager in (SLURM, KUBERNETES)]:
                return False
    return True


def _is_known(drain: Mapping[str, Any], manager: str | None) -> bool:
    """Return whether the commands are exactly those for the node and the reason."""
    if drain["look_up"] not in (None, pod_lookup_line(drain["host"]) if is_name(drain["host"]) else None):
        return False
    try:
        lines_of_manager = _lines_by_manager(drain["node"], drain["reason"]) if drain["node"] else {}
    except ValueError:
        return False
    expected = _lines(lines_of_manager, manager or "")
    return all(drain[name] == value for name, value in expected.items())


def _lines_by_manager(node: str, reason: str) -> dict[str, DrainLines]:
    """Return by manager the lines that drain a node and return it to service. Raises ValueError as `drain_command`."""
    return {
        manager: DrainLines(line=line(drain_command(manager, node, reason)), undo=line(undo_command(manager, node)))
        for manager in (SLURM, KUBERNETES)
    }


def _lines(by_manager: Mapping[str, DrainLines], manager: str) -> dict[str, Any]:
    """Return the entries of a drain with its lines: those of the manager, or those of both if it is unknown."""
    here = by_manager.get(manager)
    return {
        "line": here.line if here else None,
        "undo": here.undo if here else None,
        "if_slurm": None if manager else msgspec.to_builtins(by_manager.get(SLURM)),
        "if_kubernetes": None if manager else msgspec.to_builtins(by_manager.get(KUBERNETES)),
    }


def lines(content: Mapping[str, Any]) -> list[str]:
    """Return the recommendation for the terminal: each code with what to check, then the commands, one `CommandText` per line."""
    confirmed = [suspect for suspect in content["suspects"] if suspect["state"] == CONFIRMED]
    texts = [f"{suspect['code']}: {suspect['advice']} (see `collbench explain {suspect['code']}`)" for suspect in confirmed]
    if content["no_drain"] and confirmed:
        texts.append(f"do not drain any node: {content['no_drain']}")
    for drain in content["drains"]:
        if drain["no_line"]:
            texts.append(drain["no_line"])
            if drain["look_up"]:
                texts.append(CommandText(f"  {drain['look_up']}"))
            continue
        for start, commands in (("", drain), ("with Slurm, ", drain["if_slurm"]), ("with Kubernetes, ", drain["if_kubernetes"])):
            if commands and commands["line"]:
                texts += [f"{start}to drain {drain['node']}:", CommandText(f"  {commands['line']}")]
                texts += [f"{start}to return {drain['node']} to service:", CommandText(f"  {commands['undo']}")]
    return texts


def what(kind: str, ratio: float) -> str:
    """Return "sends and receives at 51 % of the others"."""
    is_valid = isfinite(ratio) and ratio > 0
    if kind == "latency":
        times = f"{1 / ratio:.2f} times as long as" if is_valid else "longer than"
        return f"takes {times} the others for a small message"
    return _REACHES[kind].format(format_percent(100 * ratio) if is_valid else "less than all")


def _advice(suspect: Suspect, places: list[str]) -> str:
    names = " and ".join(places)
    if suspect.state != CONFIRMED:
        return f"{names} {'is' if len(places) == 1 else 'are'} {suspect.state}: no action needed"
    if suspect.kind == TRUNK:
        return f"check the switches, ports and cables {suspect.part}; do not drain these nodes"
    if suspect.kind == "path":
        return f"check the cable and the switch ports between {names}; do not drain them: both are healthy with other partners"
    where = ""
    if suspect.part:
        where = f" ({_name(str(suspect.part))})"
    elif suspect.kind in BY_MESSAGES:
        where = " and its link (NIC, cable, switch port)"
    return f"check {names}{where}: it {what(suspect.kind, suspect.ratio)}"


def _drain(host: str, suspect: Suspect, about: HuntSummary) -> Drain:
    """Return the commands for the node of a host, or why it has none."""
    node = about.nodes.get(host, host)
    why_not = None
    if not node and host in about.nodes:
        why_not = f"the ranks of {_name(host)} report different node names: find the right one by hand"
    elif host not in about.nodes and about.pods and about.manager != SLURM:
        why_not = _sentence(
            f"{_name(host)} is a pod on an unknown node: look the node up, or set NODE_NAME in the pods (from spec.nodeName) and run the "
            "hunt again"
        )
    elif not is_name(node):
        why_not = f"{_name(node)!r} is not a valid node name: find the right one by hand"
    shown = printable(host, 100) if why_not else node
    reason = reason_of(f"{CODES[suspect.kind]} {shown} {what(suspect.kind, suspect.ratio)}, run {about.run.name[:80]}")
    return Drain(
        host=_name(host),
        node=None if why_not else node,
        code=CODES[suspect.kind],
        reason=reason,
        no_line=why_not,
        look_up=pod_lookup_line(host) if about.pods and why_not and is_name(host) else None,
        **_lines({} if why_not else _lines_by_manager(node, reason), about.manager),
    )


def _name(text: str) -> str:
    return printable(text[:_LONGEST_NAME], _LONGEST_NAME)


def _sentence(text: str) -> str:
    return printable(text[:_LONGEST_SENTENCE], _LONGEST_SENTENCE)
