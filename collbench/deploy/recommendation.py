"""What to do about it: recommendation.json, with a stable code for each kind of fault and the exact line that drains a node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from collbench.analysis.hunt.protocol import CONFIRMED, Suspect, Verdict
from collbench.analysis.pairs import hosts_of
from collbench.deploy.managers import (
    KUBERNETES,
    SLURM,
    drain_words,
    in_pod,
    is_name,
    line,
    look_line,
    manager_of,
    node_names,
    reason_of,
    undo_words,
)
from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.results.folder import utc
from collbench.results.store import read_object, replace, to_page
from collbench.units import format_percent

CODES = {
    "node": "CB6101",
    "sender": "CB6102",
    "receiver": "CB6103",
    "latency": "CB6104",
    "path": "CB6105",
    "inside": "CB6106",
    "scale": "CB6107",
}
SCHEMA, FILE, SCHEMA_FILE = 1, "recommendation.json", "recommendation.schema.json"
_PATH = "path"
_BY_MESSAGES = ("node", "sender", "receiver")  # slow messages lie in the node or in its link, unless isolation told which
_REACHES = {
    "node": "sends and receives at {} of the others",
    "sender": "sends at {} of the others",
    "receiver": "receives at {} of the others",
    "path": "reaches {} of what their other pairs do",
    "inside": "reaches {} among its own ranks of what others do among theirs",
    "scale": "reaches {} of the others in larger groups",
}
# A hunt that ends with more than this says how much it left out: the file stays below a few MB whatever was measured.
_MOST_SUSPECTS, _MOST_SENTENCES, _LONGEST_SENTENCE, _LONGEST_NAME = 1000, 20, 500, 300


@dataclass(frozen=True)
class About:
    """The hunt whose verdict it is.

    run         its folder
    allocation  its name, None where nobody gave one
    manager     who gives out the nodes: "slurm", "kubernetes", or "" where that is not known; then lines for both are written
    nodes       by host what the manager calls it, of hosts that were told (`managers.node_names`); "" for a host of which ranks differ
    pods        whether ranks run in pods: then a host's name is not its node's
    no_drain    a sentence why nobody may be drained, whatever the verdict; "": somebody may
    when        UTC, ISO 8601; "": now
    """

    run: Path
    allocation: str | None = None
    manager: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    pods: bool = False
    no_drain: str = ""
    when: str = ""

    @classmethod
    def here(
        cls, run: Path, env: Mapping[str, str], told: Iterable[tuple[str, str | None]], *,
        allocation: str | None = None, manager: str = "", no_drain: str = "",
    ) -> About:  # fmt: skip
        """Of a launch, by its environment and what each rank tells: its host, and `managers.node_here`. manager: of `check_apply`."""
        return cls(run, allocation, manager or manager_of(env), node_names(told), in_pod(env), no_drain)


def recommendation(verdict: Verdict, about: About) -> dict[str, Any]:
    """JSON-ready, as recommendation.schema.json has it. Only what is confirmed, and lies in a node, has lines that drain."""
    hosts = hosts_of(verdict.names)
    kept = verdict.suspects[:_MOST_SUSPECTS]
    return {
        "schema": SCHEMA,
        "result": verdict.result,
        "when": about.when or utc(),
        "run": printable(str(about.run.resolve()), 4096),
        "allocation": _name(about.allocation) if about.allocation else None,
        "manager": about.manager or None,
        "no_verdict": _sentence(verdict.no_verdict) if verdict.no_verdict else None,
        "no_drain": _sentence(about.no_drain) if about.no_drain else None,
        "notes": [_sentence(note) for note in verdict.notes[:_MOST_SENTENCES]],
        "suspects": [_suspect(each, verdict, hosts) for each in kept],
        "left_out": len(verdict.suspects) - len(kept),
        "drains": _drains(kept, hosts, about) if verdict.result == CONFIRMED and not about.no_drain else [],
        "applied": [],
        "refused": None,
    }


def store(folder: Path, told: Mapping[str, Any]) -> Path:
    """Writes it into the run's folder, in one step. Raises OSError, and then the file is what it was."""
    replace(folder / FILE, to_page(told))
    return folder / FILE


def read(folder: Path) -> dict[str, Any] | None:
    """The recommendation in a run's folder, None where there is none. It may be a stranger's: no line of it is shown that is not ours.

    Raises UsageError where it cannot be read, does not fit recommendation.schema.json, or has other lines than its nodes' own.
    """
    try:
        found: dict[str, Any] = read_object(folder / FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{folder / FILE} cannot be read ({why}): remove it, or hunt again") from error
    misfit = _misfit(found)
    if misfit:
        raise UsageError(f"{folder / FILE} does not fit recommendation.schema.json: {misfit}; remove it, or hunt again")
    return found


def lines(told: Mapping[str, Any]) -> list[str]:
    """What it says to do, for people: a code with what to look at, then what to type, one command a line."""
    confirmed = [each for each in told["suspects"] if each["state"] == CONFIRMED]
    found = [f"{each['code']}: {each['advice']}; `collbench explain {each['code']}` says more" for each in confirmed]
    if told["no_drain"] and confirmed:
        found.append(f"nobody is to be drained: {told['no_drain']}")
    return found + [row for each in told["drains"] for row in _typed(each)]


def what(kind: str, ratio: float) -> str:
    """ "sends and receives at 51 % of the others"."""
    known = isfinite(ratio) and ratio > 0
    if kind == "latency":
        times = f"{1 / ratio:.2f} times as long as" if known else "longer than"
        return f"takes {times} the others for a small message"
    return _REACHES[kind].format(format_percent(100 * ratio) if known else "less than all")


def _suspect(suspect: Suspect, verdict: Verdict, hosts: tuple[str, ...]) -> dict[str, Any]:
    places = [_name(verdict.names[place]) for place in suspect.places]
    return {
        "places": places,
        "hosts": list(dict.fromkeys(_name(hosts[place]) for place in suspect.places)),
        "state": suspect.state,
        "code": CODES[suspect.kind],
        "kind": suspect.kind,
        "ratio": suspect.ratio if isfinite(suspect.ratio) else None,
        "low": suspect.low,
        "high": suspect.high,
        "part": _name(suspect.part),
        "partners": [_name(verdict.names[place]) for place in suspect.partners[:_MOST_SENTENCES]],
        "evidence": [_sentence(each) for each in suspect.evidence[:_MOST_SENTENCES]],
        "advice": _advice(suspect, places),
    }


def _advice(suspect: Suspect, places: list[str]) -> str:
    who = " and ".join(places)
    if suspect.state != CONFIRMED:
        return f"{who} {'is' if len(places) == 1 else 'are'} {suspect.state}: nothing is to be done about it"
    if suspect.kind == _PATH:
        return f"look at the cable and the switch ports between {who}; both are well with others, so neither is to be drained"
    link = " and its link (NIC, cable, switch port)" if suspect.kind in _BY_MESSAGES else ""
    where = f" ({_name(suspect.part)})" if suspect.part else link
    return f"look at {who}{where}: it {what(suspect.kind, suspect.ratio)}"


def _drains(suspects: tuple[Suspect, ...], hosts: tuple[str, ...], about: About) -> list[dict[str, Any]]:
    """One for each node, which several pods may share; the first suspect there, the worst, gives the reason."""
    found: dict[str, dict[str, Any]] = {}
    for each in suspects:
        if each.state == CONFIRMED and each.kind != _PATH:
            for drain in (_drain(hosts[place], each, about) for place in each.places):
                found.setdefault(drain["node"] or f"host {drain['host']}", drain)
    return list(found.values())


def _drain(host: str, suspect: Suspect, about: About) -> dict[str, Any]:
    name, why_not = _node_of(host, about)
    reason = reason_of(
        f"{CODES[suspect.kind]} {name or printable(host, 100)} {what(suspect.kind, suspect.ratio)}, run {about.run.name[:80]}"
    )
    both = {each: _both_lines(each, name, reason) for each in (SLURM, KUBERNETES)} if name else {}
    here = both.get(about.manager, {"line": None, "undo": None})
    return {
        "host": _name(host),
        "node": name,
        "code": CODES[suspect.kind],
        "reason": reason,
        **here,
        "if_slurm": None if about.manager else both.get(SLURM),
        "if_kubernetes": None if about.manager else both.get(KUBERNETES),
        "no_line": why_not,
        "look_up": look_line(host) if about.pods and why_not and is_name(host) else None,
    }


def _node_of(host: str, about: About) -> tuple[str | None, str | None]:
    """The node's name, or None and why there is none that a command may have."""
    told = about.nodes.get(host)
    if told == "":
        return None, f"the ranks of {_name(host)} name different nodes: look which of them it is"
    if told is None and about.pods and about.manager != SLURM:
        return None, _sentence(
            f"{_name(host)} is a pod, and which node it is on was not told: look it up, or set NODE_NAME in the pods "
            "(from spec.nodeName) and hunt again"
        )
    name = host if told is None else told
    if not is_name(name):
        return None, f"{_name(name)!r} is not the name of one node: look by hand which it is"
    return name, None


def _both_lines(manager: str, name: str, reason: str) -> dict[str, str]:
    return {"line": line(drain_words(manager, name, reason)), "undo": line(undo_words(manager, name))}


def _typed(drain: Mapping[str, Any]) -> list[str]:
    if drain["no_line"]:
        return [drain["no_line"], *([f"  {drain['look_up']}"] if drain["look_up"] else [])]
    ways = (("", drain), ("with Slurm, ", drain["if_slurm"]), ("with Kubernetes, ", drain["if_kubernetes"]))
    shown = [(start, way) for start, way in ways if way and way["line"]]
    return [row for start, way in shown for row in (
        f"{start}to take {drain['node']} out of use:", f"  {way['line']}", f"{start}to bring {drain['node']} back:", f"  {way['undo']}",
    )]  # fmt: skip


def _name(text: str) -> str:
    return printable(text[:_LONGEST_NAME], _LONGEST_NAME)


def _sentence(text: str) -> str:
    return printable(text[:_LONGEST_SENTENCE], _LONGEST_SENTENCE)


def _misfit(told: Mapping[str, Any]) -> str:
    from jsonschema import Draft202012Validator

    schema = json.loads(Path(__file__).with_name(SCHEMA_FILE).read_text(encoding="utf-8"))
    checks = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next(iter(checks.iter_errors(told)), None)
    if error is not None:
        return _name(f"{'.'.join(map(str, error.absolute_path)) or 'it'}: {error.message}")
    if not all(text == printable(text, len(text)) for text in _texts(told)):
        return "a text of it holds control characters"
    typed = [None, *(each["line"] for each in told["drains"])]
    ours = all(_is_ours(each, told["manager"]) for each in told["drains"]) and all(
        each["line"] in typed and _is_undone(each) for each in told["applied"]
    )
    return "" if ours else "a line of it is not the one that drains its node, or brings it back"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _is_ours(drain: Mapping[str, Any], manager: str | None) -> bool:
    """Whether its lines are those that its node and reason make."""
    node, host, none = drain["node"], drain["host"], {"line": None, "undo": None}
    if drain["look_up"] not in (None, look_line(host) if is_name(host) else None):
        return False
    try:
        both = {each: _both_lines(each, node, drain["reason"]) for each in (SLURM, KUBERNETES)} if node else {}
    except ValueError:
        return False
    here = {name: drain[name] for name in none}
    if manager or not node:
        return here == both.get(manager or "", none) and drain["if_slurm"] is None and drain["if_kubernetes"] is None
    return here == none and (drain["if_slurm"], drain["if_kubernetes"]) == (both[SLURM], both[KUBERNETES])


def _is_undone(entry: Mapping[str, Any]) -> bool:
    return entry["undo"] is None or (
        is_name(entry["node"]) and entry["undo"] in [line(undo_words(each, entry["node"])) for each in (SLURM, KUBERNETES)]
    )
