"""Drain the nodes that a hunt confirmed as faulty (`--apply`): the limit, and what was done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from shutil import which
from typing import Any

import msgspec

from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.hunt.managers import (
    SLURM,
    TOOLS,
    ManagedNode,
    Run,
    drain_command,
    is_name,
    line,
    manager_of,
    nodes,
    run_here,
    undo_command,
)
from collbench.plugins.hunt.protocol import CONFIRMED
from collbench.plugins.hunt.records import NONE_SLOW
from collbench.results.folder import utc
from collbench.units import plural

BEGUN, DRAINED, LEFT, FAILED = "begun", "drained", "left", "failed"
_CAP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%|([0-9]{1,9})", re.ASCII)
_FORMS = "use a percentage of the cluster's nodes (--max-drain 2%) or a number of nodes (--max-drain 3)"


class Cap(msgspec.Struct, frozen=True):
    """The most nodes that collbench may drain in total: a percentage of all nodes (at least one), or a number. text: as typed."""

    text: str
    percent: Fraction | None = None
    count: int = 0

    def of(self, nodes: int) -> int:
        """Return the limit for a cluster of so many nodes; a percentage is rounded up."""
        return self.count if self.percent is None else max(1, ceil(self.percent * nodes / 100))


class Applied(msgspec.Struct):
    """The result of `apply`.

    entries  one per node, as in recommendation.json: node, action ("drained", "left" or "failed"), why, line, undo, when
    refused  why no node was drained; "": nodes were, or there were none to drain
    """

    entries: list[dict[str, Any]] = msgspec.field(default_factory=list)
    refused: str = ""

    def lines(self) -> list[str]:
        """Return lines for the terminal: what was done, what was not and why, and one command per node that undoes it."""
        return [self.refused] if self.refused else lines_of(self.entries)


def parse_cap(text: str) -> Cap:
    """Parse "2%", "0.5 %" or "3". Raises UsageError for anything else, for 0, and for more than 100 %."""
    match = _CAP.fullmatch(text.strip())
    shown = printable(text, 40)
    if not match:
        raise UsageError(f"--max-drain {shown!r}: not a valid number of nodes: {_FORMS}")
    number = Fraction(match[1] or match[2])
    if not number:
        raise UsageError(f"--max-drain {shown} allows no drain: omit --apply, or {_FORMS}")
    if match[1] and number > 100:
        raise UsageError(f"--max-drain {shown} exceeds 100 %: {_FORMS}")
    return Cap(text.strip(), number) if match[1] else Cap(text.strip(), None, int(number))


def check_apply(env: Mapping[str, str], run: Run = run_here) -> str:
    """Return the manager that can drain nodes here, "slurm" or "kubernetes". Raises UsageError if none can, or both.

    The manager must answer: kubectl in PATH is not enough, since other packages install it on machines without a cluster.
    """
    launched = manager_of(env)
    tried = [launched] if launched else [name for name, tool in TOOLS.items() if which(tool, path=env.get("PATH"))]
    results = {name: nodes(name, env, run) for name in tried}
    able = [name for name, (managed, _) in results.items() if managed is not None]
    if len(able) > 1:
        raise UsageError("--apply: this host has both Slurm and Kubernetes, and neither started this launch: start it with srun or in "
                         "pods, or omit --apply and run the commands of recommendation.json")  # fmt: skip
    if not able:
        failed = " and ".join(f"{TOOLS[name]} does not work ({why})" for name, (_, why) in results.items()) or "neither is installed here"
        raise UsageError(f"--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, but {failed}: start the "
                         "hunt on a host with one of them, or omit --apply and run the commands of recommendation.json there")  # fmt: skip
    return able[0]


def apply(
    content: Mapping[str, Any],
    cap: Cap,
    env: Mapping[str, str],
    note: Callable[[dict[str, Any]], None] = lambda entry: None,
    run: Run = run_here,
) -> Applied:
    """Drain the nodes of a recommendation. Drains none if that would exceed `cap`.

    If another hunt drains at the same time and both together exceed the cap, the node just drained is returned to service.

    `note` is called with an entry before each drain, and again with its outcome. So its records name all nodes that may be drained,
    however this process ends. A failure of the manager is part of the result. Raises RunFailed only if `note` fails: then no further
    node is drained, and the message has what was done and how to undo it.
    """
    refused = _not_applicable(content)
    managed = None
    if not refused:
        managed, why = nodes(content["manager"], env, run)
        refused = f"{TOOLS[content['manager']]} does not list the nodes ({why}); the commands are in recommendation.json"
    if managed is None:
        return Applied(refused=f"no node is drained: {refused}")
    by_name = {node.name: node for node in managed}
    new = sum(drain["node"] not in by_name or not by_name[drain["node"]].drained for drain in content["drains"])
    already = sum(node.drained_by_collbench for node in managed)
    most = cap.of(len(managed))
    if new and already + new > most:
        how = "drained by collbench" if content["manager"] == SLURM else "cordoned"
        before = f", {plural(already, 'node')} already {how}" if already else ""
        return Applied(refused=(
            f"no node is drained: {plural(new, 'node')} confirmed{before}, but --max-drain {cap.text} allows {most} of "
            f"{plural(len(managed), 'node')}; check for a common cause, then run the commands of recommendation.json, or use a larger "
            "--max-drain"
        ))  # fmt: skip
    applied = Applied()
    for drain in content["drains"]:
        try:
            for entry in _drain_node(drain, by_name.get(drain["node"]), content["manager"], cap=cap, env=env, run=run):
                if entry["action"] != BEGUN:
                    applied.entries.append(entry)
                note(entry)
        except CollbenchError as error:  # report the drains even if they can no longer be stored
            raise RunFailed(f"{error}; so far: {'; '.join(applied.lines()) or 'no node is drained'}") from error
    return applied


def lines_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return "applied" of a recommendation as lines for the terminal."""
    return [*(entry["why"] for entry in entries), *(f"undo: {entry['undo']}" for entry in entries if entry["undo"])]


def _not_applicable(content: Mapping[str, Any]) -> str:
    """Return why a recommendation drains no node; "" where it drains some."""
    if content["result"] != CONFIRMED:
        return "the hunt found no slow node or pair" if content["result"] == NONE_SLOW else "the hunt has no verdict"
    if content["no_drain"]:
        return str(content["no_drain"])
    if not content["drains"]:
        return "no confirmed fault is in a node"
    if content["manager"] not in TOOLS:
        return "neither Slurm nor Kubernetes manages these nodes; the commands are in recommendation.json"
    return ""


def _drain_node(
    drain: Mapping[str, Any], earlier: ManagedNode | None, manager: str, *, cap: Cap, env: Mapping[str, str], run: Run
) -> Iterator[dict[str, Any]]:
    """Drain one node, unless it is already drained, or the cap would be exceeded by now. Yield an entry before that, and the outcome.

    earlier  the node as it was before; None: the manager has no node of that name
    """

    def entry(action: str, why: str, undo: str | None = None) -> dict[str, Any]:
        return {"node": drain["node"] or drain["host"], "action": action, "why": why, "line": drain["line"], "undo": undo, "when": utc()}

    name = drain["node"]
    tool = TOOLS[manager]
    if earlier is not None and earlier.drained:
        reason = f" ({earlier.reason})" if earlier.reason else ""
        yield entry(LEFT, f"{name} is already drained{reason}; left unchanged")
        return
    if not name or not is_name(name):
        yield entry(FAILED, f"{drain['host']} is not drained: {drain['no_line'] or 'it is not a valid node name'}")
        return
    command = drain_command(manager, name, drain["reason"])
    undo = line(undo_command(manager, name))
    by_hand = f"run by hand, with the needed permissions: {line(command)}"
    if earlier is None:
        yield entry(FAILED, f"{name} is not drained: {tool} has no node of that name; with the right name, {by_hand}")
        return
    yield entry(BEGUN, f"{tool} was started to drain {name}; its outcome is not known", undo)
    outcome = run(command, env)
    now = nodes(manager, env, run)[0] or []  # the node's state counts, not the exit code of the command
    if not any(node.name == name and node.drained for node in now):
        why = outcome.why or f"{tool} reported success, but the node is not drained"
        yield entry(FAILED, f"{name} is not drained ({why}): {by_hand}")
    elif sum(node.drained_by_collbench for node in now) <= cap.of(len(now)):
        yield entry(DRAINED, f"{name} is drained", undo)
    else:
        over = f"another hunt drained nodes at the same time, and --max-drain {cap.text} is exceeded"
        outcome = run(undo_command(manager, name), env)
        after, _ = nodes(manager, env, run, name)
        if after and after[0].name == name and not after[0].drained:
            yield entry(LEFT, f"{name} was drained and returned to service: {over}")
        else:
            why = outcome.why or "unknown cause"
            yield entry(DRAINED, f"{name} is drained, and could not be returned to service ({why}): {over}", undo)
