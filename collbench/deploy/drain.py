"""Takes nodes out of use that a hunt confirmed (`--apply`): so many at most, none without a verdict, and says how to bring them back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from shutil import which
from typing import Any

from collbench.analysis.hunt.protocol import CONFIRMED
from collbench.deploy.managers import TOOLS, Ask, Node, ask_here, drain_words, is_name, line, manager_of, nodes, undo_words
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.machine.readers.text import printable
from collbench.results.folder import utc

BEGUN, DRAINED, LEFT, FAILED = "begun", "drained", "left", "failed"
DEFAULT_CAP = "2%"
_CAP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%|([0-9]{1,9})", re.ASCII)
_FORMS = "give a share of the cluster's nodes (--max-drain 2%) or a number of nodes (--max-drain 3)"


@dataclass(frozen=True)
class Cap:
    """How many nodes may be drained by collbench at the same time: a share of all (of which one at least), or a number. text: as typed."""

    text: str
    percent: Fraction | None = None
    count: int = 0

    def of(self, nodes: int) -> int:
        """How many of so many nodes; a share is rounded up."""
        return self.count if self.percent is None else max(1, ceil(self.percent * nodes / 100))


@dataclass
class Applied:
    """What was done.

    entries  by node, as recommendation.json keeps them: node, action ("drained", "left" or "failed"), why, line, undo, when
    refused  the sentence why nobody is drained, "": nothing stood against it
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    refused: str = ""

    @property
    def undo(self) -> list[str]:
        """The lines that bring back what was drained."""
        return [each["undo"] for each in self.entries if each["undo"]]

    def as_json(self) -> list[dict[str, Any]]:
        """For "applied" of recommendation.json."""
        return self.entries

    def lines(self) -> list[str]:
        """For people: what was done, what was not and why, and one line per node that undoes it."""
        return [self.refused] if self.refused else lines_of(self.entries)


def parse_cap(text: str) -> Cap:
    """ "2%", "0.5 %" or "3". Raises UsageError for what is neither, for nobody, and for more than all."""
    match = _CAP.fullmatch(text.strip())
    shown = printable(text, 40)
    if not match:
        raise UsageError(f"--max-drain {shown!r} is no number of nodes: {_FORMS}")
    number = Fraction(match[1] or match[2])
    if not number:
        raise UsageError(f"--max-drain {shown} lets nobody be drained: leave --apply out, or {_FORMS}")
    if match[1] and number > 100:
        raise UsageError(f"--max-drain {shown} is more than all nodes: {_FORMS}")
    return Cap(text.strip(), number) if match[1] else Cap(text.strip(), None, int(number))


def check_apply(env: Mapping[str, str], ask: Ask = ask_here) -> str:
    """Who would drain here, "slurm" or "kubernetes", and answers. Raises UsageError where nobody does, or both would.

    A tool in PATH is not enough: kubectl comes with other packages, to machines that know of no cluster.
    """
    launched = manager_of(env)
    tried = [launched] if launched else [name for name, tool in TOOLS.items() if which(tool, path=env.get("PATH"))]
    told = {name: nodes(name, env, ask) for name in tried}
    answer = [name for name, (found, _) in told.items() if found is not None]
    if len(answer) > 1:
        raise UsageError("--apply finds both Slurm and Kubernetes here, and neither started this launch: start it with srun or in pods, or "
                         "leave --apply out and type the lines of recommendation.json")  # fmt: skip
    if not answer:
        raise UsageError(f"--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, and {_nobody(told)}: start where one of "
                         "them is, or leave --apply out and type the lines of recommendation.json where it is")  # fmt: skip
    return answer[0]


def apply(
    told: Mapping[str, Any],
    cap: Cap,
    env: Mapping[str, str],
    note: Callable[[dict[str, Any]], None] = lambda entry: None,
    ask: Ask = ask_here,
) -> Applied:
    """Drains what a recommendation confirms, unless more nodes are confirmed than `cap` leaves: then nobody.

    Where somebody else drains meanwhile, so that both together pass the cap, a node just drained is brought back.

    `note` is called before a node is asked for, with an entry that has begun, and again with what came of it: whatever ends this
    process, its notes name every node that may be drained. What the manager refuses is a sentence in the result, and nothing is raised
    but RunFailed where `note` does: no more is drained then, and the sentence tells what was, and how to undo it.
    """
    refused = _no_reason(told)
    found, why = (None, "") if refused else nodes(told["manager"], env, ask)
    if found is None:
        return _nobody_is(refused or f"{TOOLS[told['manager']]} does not say which nodes there are ({why}); the lines to type are in "
                          "recommendation.json")  # fmt: skip
    there = {node.name: node for node in found}
    new = [each for each in told["drains"] if not _drained(there, each)]
    refused = _past_the_cap(cap, len(new), found, told["manager"])
    if refused:
        return _nobody_is(refused)
    applied, drainer = Applied(), _Drainer(told["manager"], cap, env, ask, there, note)
    for each in told["drains"]:
        try:
            applied.entries.append(entry := drainer.drain(each))
            note(entry)
        except CollbenchError as error:  # what was done must be known even where it can no longer be written
            raise RunFailed(f"{error}; meanwhile {'; '.join(applied.lines()) or 'nobody is drained'}") from error
    return applied


def lines_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What "applied" of a recommendation says to people."""
    return [*(each["why"] for each in entries), *(f"undo it with: {each['undo']}" for each in entries if each["undo"])]


def _nobody_is(why: str) -> Applied:
    return Applied(refused=f"nobody is drained: {why}")


def _nobody(told: Mapping[str, tuple[Any, str]]) -> str:
    if not told:
        return "neither is found here"
    return " and ".join(f"{TOOLS[name]} does not answer ({why})" for name, (_, why) in told.items())


def _no_reason(told: Mapping[str, Any]) -> str:
    """Why a recommendation drains nobody; "": it does."""
    if told["result"] != CONFIRMED:
        return "nobody is confirmed as the reason" if told["result"] == "nobody" else "there is no verdict"
    if told["no_drain"]:
        return str(told["no_drain"])
    if not told["drains"]:
        return "what is confirmed lies in no node"
    return (
        ""
        if told["manager"] in TOOLS
        else "neither Slurm nor Kubernetes gives out these nodes; the lines to type are in recommendation.json"
    )


def _drained(there: Mapping[str, Node], drain: Mapping[str, Any]) -> bool:
    node = there.get(drain["node"])
    return node is not None and node.drained


def _past_the_cap(cap: Cap, new: int, found: list[Node], manager: str) -> str:
    ours, most = sum(node.ours for node in found), cap.of(len(found))
    if not new or ours + new <= most:
        return ""
    by = "by collbench" if manager == "slurm" else "(cordoned, by whom is not told)"
    before = f", {ours} {'is' if ours == 1 else 'are'} drained {by} already" if ours else ""
    return (
        f"{new} {'is' if new == 1 else 'are'} confirmed{before}, and --max-drain {cap.text} allows {most} of {len(found)} nodes; "
        "see whether what they share is the reason, then type the lines of recommendation.json, or raise --max-drain"
    )


def _left(node: Node, drain: Mapping[str, Any]) -> dict[str, Any]:
    reason = f" ({node.reason})" if node.reason else ""
    return _entry(drain, LEFT, f"{node.name} is drained already{reason}, and left as it is")


@dataclass(frozen=True)
class _Drainer:
    """Who drains, how many at most, and how it is asked; there: by name the nodes as they were at first.

    note: is told of each node before it is asked for
    """

    manager: str
    cap: Cap
    env: Mapping[str, str]
    ask: Ask
    there: Mapping[str, Node]
    note: Callable[[dict[str, Any]], None]

    def drain(self, drain: Mapping[str, Any]) -> dict[str, Any]:
        """One node, unless it is drained already, or can no longer be within the cap; what came of it."""
        name = drain["node"]
        if _drained(self.there, drain):
            return _left(self.there[name], drain)
        if not name or not is_name(name):
            return _entry(drain, FAILED, f"{drain['host']} is not drained: {drain['no_line'] or 'its name is not that of one node'}")
        by_hand, tool = f"type by hand, where it is allowed: {line(self._words(drain))}", TOOLS[self.manager]
        if name not in self.there:
            return _entry(drain, FAILED, f"{name} is not drained: {tool} knows no node of that name; with its right name {by_hand}")
        why = f"{tool} was asked to drain {name}, and what came of it is not known"
        self.note(_entry(drain, BEGUN, why) | {"undo": line(undo_words(self.manager, name))})
        said = self.ask(self._words(drain), self.env)
        now = nodes(self.manager, self.env, self.ask)[0] or []  # what is now counts: an answer may be lost, and one of success may be wrong
        if any(node.name == name and node.drained for node in now):
            return self._taken_back(drain) if sum(node.ours for node in now) > self.cap.of(len(now)) else self._done(drain)
        return _entry(
            drain, FAILED, f"{name} is not drained ({said.why or f'{tool} said that it did, and the node is not drained'}): {by_hand}"
        )

    def _taken_back(self, drain: Mapping[str, Any]) -> dict[str, Any]:
        """Two hunts that drain at the same time each saw room for their own; where there is none for both, who sees it gives way."""
        name, past = drain["node"], f"with it more nodes than --max-drain {self.cap.text} allows are drained, since others were meanwhile"
        said = self.ask(undo_words(self.manager, name), self.env)
        now, _ = nodes(self.manager, self.env, self.ask, name)
        if now and now[0].name == name and not now[0].drained:
            return _entry(drain, LEFT, f"{name} was drained and is brought back: {past}")
        return self._done(drain, f", and could not be brought back ({said.why or 'why is not told'}): {past}")

    def _done(self, drain: Mapping[str, Any], why: str = "") -> dict[str, Any]:
        return _entry(drain, DRAINED, f"{drain['node']} is drained{why}") | {"undo": line(undo_words(self.manager, drain["node"]))}

    def _words(self, drain: Mapping[str, Any]) -> list[str]:
        return drain_words(self.manager, drain["node"], drain["reason"])


def _entry(drain: Mapping[str, Any], action: str, why: str) -> dict[str, Any]:
    return {"node": drain["node"] or drain["host"], "action": action, "why": why, "line": drain["line"], "undo": None, "when": utc()}
