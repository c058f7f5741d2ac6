"""Drain the nodes that a hunt confirmed as faulty (`--apply`): recommendation.json, the commands of Slurm and Kubernetes, and the limit."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, isfinite
from pathlib import Path
from shutil import which
from typing import Any

from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.hunt.protocol import BY_MESSAGES, CONFIRMED, HuntVerdict, Suspect
from collbench.plugins.hunt.records import NONE_SLOW
from collbench.reason import CommandText
from collbench.results.folder import utc
from collbench.results.store import read_object, replace, to_page
from collbench.units import format_percent, plural

# The cluster manager, Slurm or Kubernetes: its names of the nodes, the drained nodes, and the commands that drain one.

SLURM, KUBERNETES = "slurm", "kubernetes"
TOOLS = {SLURM: "scontrol", KUBERNETES: "kubectl"}
MARK = "[collbench] "  # the start of the reason of each drain by collbench, also by the node check
TIMEOUT_S = 20.0
LONGEST_REASON = 200
# The name of one host: letters, digits, "-" and "_" between dots. Slurm would expand node[1-9], node1,node2 and ALL to several nodes.
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?)*", re.ASCII)
_ALL_NODES = "all"
_NOT_IN_A_REASON = re.compile(r"[^A-Za-z0-9 .,:;?%/_+()\[\]@#=-]", re.ASCII)  # special to a shell, Slurm or a terminal
_SLURM_NODE = re.compile(r"^NodeName=(\S+).*? State=(\S+)(?:.*? Reason=(.*?)(?: \[[^][]*\])?\s*$)?", re.MULTILINE)
_NODE_VARIABLES = {SLURM: "SLURMD_NODENAME", KUBERNETES: "NODE_NAME"}


@dataclass(frozen=True)
class CommandOutcome:
    """The outcome of a command.

    It has the exit code (None: it did not start, or timed out), stdout, and why the command failed ("": it succeeded).
    """

    code: int | None
    out: str = ""
    why: str = ""


Run = Callable[[Sequence[str], Mapping[str, str]], CommandOutcome]


@dataclass(frozen=True)
class ManagedNode:
    """A node as its manager reports it. Kubernetes does not record the reason, so each cordoned node counts as
    `drained_by_collbench`.
    """

    name: str
    drained: bool = False
    drained_by_collbench: bool = False
    reason: str = ""


def manager_of(env: Mapping[str, str]) -> str:
    """Return the manager of this launch: SLURM in a Slurm job, KUBERNETES in a pod, else ""."""
    if env.get("SLURM_JOB_ID"):
        return SLURM  # first, since Slurm may run in pods
    return KUBERNETES if in_pod(env) else ""


def in_pod(env: Mapping[str, str]) -> bool:
    """Return whether this is a pod; the host name of a pod is not the name of its node."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def node_here(env: Mapping[str, str]) -> str | None:
    """Return the manager's name of this node: SLURMD_NODENAME in Slurm tasks, NODE_NAME in pods that set it; else None."""
    manager = manager_of(env)
    return env.get(_NODE_VARIABLES[manager]) or None if manager else None


def node_names(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the node name of each host, from (host, node name) of each rank; "" where the ranks of a host report different names."""
    found: dict[str, str] = {}
    for host, name in pairs:
        if name:
            found[host] = name if found.get(host, name) == name else ""
    return found


def is_name(text: str) -> bool:
    """Return whether a text is the name of one node, without characters that are special to a shell or a manager."""
    return bool(_NAME.fullmatch(text)) and text.lower() != _ALL_NODES


def reason_of(text: str) -> str:
    """Return the reason of a drain: with the mark of collbench, one line, without special characters, of limited length."""
    clean = _NOT_IN_A_REASON.sub("?", text)
    return (MARK + (clean if len(clean) <= LONGEST_REASON else f"{clean[: LONGEST_REASON - 4]} ...")).strip()


def drain_command(manager: str, name: str, reason: str) -> list[str]:
    """Return the command that drains a node. Raises ValueError for an invalid name, or a reason that is not from `reason_of`."""
    own = reason.startswith(MARK.strip()) and len(reason) <= len(MARK) + LONGEST_REASON and not _NOT_IN_A_REASON.search(reason)
    if not is_name(name) or not own:
        raise ValueError(f"not a valid node name, or not a reason of collbench: {name!r}, {reason!r}")
    if manager == SLURM:
        return ["scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"]
    return ["kubectl", "cordon", name]


def undo_command(manager: str, name: str) -> list[str]:
    """Return the command that returns a node to service. Raises ValueError for an invalid name."""
    if not is_name(name):
        raise ValueError(f"not a valid node name: {name!r}")
    return ["scontrol", "update", f"NodeName={name}", "State=RESUME"] if manager == SLURM else ["kubectl", "uncordon", name]


def pod_lookup_line(host: str) -> str:
    """Return the command line that shows the node of a pod, by the pod's host name. Raises ValueError for an invalid name.

    It searches the list of pods, since the name of a pod of an indexed job is longer than its host name.
    """
    if not is_name(host):
        raise ValueError(f"not a valid host name: {host!r}")
    return f"kubectl get pods --all-namespaces --output=wide | grep -F -e {shlex.quote(host)}"


def line(words: Sequence[str]) -> str:
    """Return a command as a shell line; each word quoted where needed, a reason in double quotes."""
    typed = []
    for word in words:
        name, _, value = word.partition("=")
        plain_reason = name == "Reason" and not _NOT_IN_A_REASON.search(value)
        typed.append(f'{name}="{value}"' if plain_reason else shlex.quote(word))
    return " ".join(typed)


def nodes(manager: str, env: Mapping[str, str], run: Run, name: str = "") -> tuple[list[ManagedNode] | None, str]:
    """Return (all nodes of the manager, or the one of that name; ""), or (None, why the manager did not report them)."""
    names = [name] if name else []
    if manager == SLURM:
        outcome = run(["scontrol", "--all", "--oneliner", "show", "nodes", *names], env)
        managed = _of_slurm(outcome.out)
    else:
        fields = r'{.metadata.name}{" "}{.spec.unschedulable}{"\n"}'
        output = fields if name else f"{{range .items[*]}}{fields}{{end}}"
        timeout = f"--request-timeout={TIMEOUT_S / 2:g}s"
        outcome = run(["kubectl", "get", "nodes", *names, timeout, f"--output=jsonpath={output}"], env)
        rows = [row.split() for row in outcome.out.splitlines() if row.strip()]
        managed = [ManagedNode(row[0], row[1:] == ["true"], row[1:] == ["true"]) for row in rows]
    if outcome.code == 0 and managed:
        return managed, ""
    return None, outcome.why or "it lists no nodes"


def _of_slurm(text: str) -> list[ManagedNode]:
    managed = []
    for name, state, reason in _SLURM_NODE.findall(text):
        drained = "DRAIN" in state
        managed.append(ManagedNode(name, drained, drained and reason.startswith(MARK.strip()), printable(reason)))
    return managed


def run_here(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
    """Run a manager's command without a shell, with English output, for at most TIMEOUT_S seconds. Never raises for a failed command."""
    import subprocess

    try:
        done = subprocess.run(
            list(words), env={**env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return CommandOutcome(None, why=f"{words[0]} did not end within {TIMEOUT_S:g} s")
    except OSError as error:
        return CommandOutcome(None, why=f"{words[0]} cannot be started ({error.strerror or error})")
    last = next((text for each in reversed(f"{done.stdout}\n{done.stderr}".splitlines()) if (text := printable(each))), "")
    why = "" if done.returncode == 0 else last or f"{words[0]} ended with exit code {done.returncode}"
    return CommandOutcome(done.returncode, done.stdout, why)


# recommendation.json: a stable code for each kind of fault, and the exact command that drains a node.

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


@dataclass(frozen=True)
class HuntSummary:
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
    nodes: Mapping[str, str] = field(default_factory=dict)
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
    """Return recommendation.json (recommendation.schema.json). Only confirmed faults in a node have commands that drain."""
    hosts = verdict.hosts or verdict.names
    kept = verdict.suspects[:_MOST_SUSPECTS]
    suspects = []
    drains: dict[str, dict[str, Any]] = {}  # by node, which several pods may share; its first suspect, the worst, gives the reason
    for each in kept:
        places = [_name(verdict.names[place]) for place in each.places]
        suspects.append({
            "places": places,
            "hosts": list(dict.fromkeys(_name(hosts[place]) for place in each.places)),
            "state": each.state,
            "code": CODES[each.kind],
            "kind": each.kind,
            "ratio": each.ratio if isfinite(each.ratio) else None,
            "low": each.low,
            "high": each.high,
            "part": _name(str(each.part or "")),
            "partners": [_name(verdict.names[place]) for place in each.partners[:_MOST_SENTENCES]],
            "evidence": [_sentence(str(evidence)) for evidence in each.evidence[:_MOST_SENTENCES]],
            "advice": _advice(each, places),
        })  # fmt: skip
        if each.state == CONFIRMED and each.kind != _PATH:
            for place in each.places:
                drain = _drain(hosts[place], each, about)
                drains.setdefault(drain["node"] or f"host {drain['host']}", drain)
    return {
        "schema": SCHEMA,
        "result": verdict.result,
        "when": about.when or utc(),
        "run": printable(str(about.run.resolve()), 4096),
        "allocation": _name(about.allocation) if about.allocation else None,
        "manager": about.manager or None,
        "no_verdict": _sentence(str(verdict.no_verdict)) if verdict.no_verdict else None,
        "no_drain": _sentence(about.no_drain) if about.no_drain else None,
        "notes": [_sentence(str(note)) for note in verdict.notes[:_MOST_SENTENCES]],
        "suspects": suspects,
        "left_out": len(verdict.suspects) - len(kept),
        "drains": list(drains.values()) if verdict.result == CONFIRMED and not about.no_drain else [],
        "applied": [],
        "refused": None,
    }


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

    schema = json.loads(Path(__file__).with_name(SCHEMA_FILE).read_text(encoding="utf-8"))
    checks = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    misfit = next(iter(checks.iter_errors(content)), None)
    problem = ""
    if misfit is not None:
        problem = _name(f"{'.'.join(map(str, misfit.absolute_path)) or 'it'}: {misfit.message}")
    elif not all(text == printable(text, len(text)) for text in _texts(content)):
        problem = "a text contains control characters"
    elif not _has_own_commands(content):
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


def _has_own_commands(content: Mapping[str, Any]) -> bool:
    """Return whether all commands are exactly those for their node and reason."""
    drained = [None, *(drain["line"] for drain in content["drains"])]
    if not all(_is_own(drain, content["manager"]) for drain in content["drains"]):
        return False
    for entry in content["applied"]:
        undone = entry["undo"] is None or (
            is_name(entry["node"]) and entry["undo"] in [line(undo_command(manager, entry["node"])) for manager in (SLURM, KUBERNETES)]
        )
        if entry["line"] not in drained or not undone:
            return False
    return True


def _is_own(drain: Mapping[str, Any], manager: str | None) -> bool:
    """Return whether the commands are exactly those for the node and the reason."""
    node, host, none = drain["node"], drain["host"], {"line": None, "undo": None}
    if drain["look_up"] not in (None, pod_lookup_line(host) if is_name(host) else None):
        return False
    try:
        both = _both_ways(node, drain["reason"]) if node else {}
    except ValueError:
        return False
    here = {name: drain[name] for name in none}
    if manager or not node:
        return here == both.get(manager or "", none) and drain["if_slurm"] is None and drain["if_kubernetes"] is None
    return here == none and (drain["if_slurm"], drain["if_kubernetes"]) == (both[SLURM], both[KUBERNETES])


def _both_ways(node: str, reason: str) -> dict[str, dict[str, str]]:
    """Return by manager the lines that drain a node and return it to service. Raises ValueError as `drain_command`."""
    return {
        manager: {"line": line(drain_command(manager, node, reason)), "undo": line(undo_command(manager, node))}
        for manager in (SLURM, KUBERNETES)
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
        for start, way in (("", drain), ("with Slurm, ", drain["if_slurm"]), ("with Kubernetes, ", drain["if_kubernetes"])):
            if way and way["line"]:
                texts += [f"{start}to drain {drain['node']}:", CommandText(f"  {way['line']}")]
                texts += [f"{start}to return {drain['node']} to service:", CommandText(f"  {way['undo']}")]
    return texts


def what(kind: str, ratio: float) -> str:
    """Return "sends and receives at 51 % of the others"."""
    known = isfinite(ratio) and ratio > 0
    if kind == "latency":
        times = f"{1 / ratio:.2f} times as long as" if known else "longer than"
        return f"takes {times} the others for a small message"
    return _REACHES[kind].format(format_percent(100 * ratio) if known else "less than all")


def _advice(suspect: Suspect, places: list[str]) -> str:
    named = " and ".join(places)
    if suspect.state != CONFIRMED:
        return f"{named} {'is' if len(places) == 1 else 'are'} {suspect.state}: no action needed"
    if suspect.kind == _PATH:
        return f"check the cable and the switch ports between {named}; do not drain them: both are healthy with other partners"
    link = " and its link (NIC, cable, switch port)" if suspect.kind in BY_MESSAGES else ""
    where = f" ({_name(str(suspect.part))})" if suspect.part else link
    return f"check {named}{where}: it {what(suspect.kind, suspect.ratio)}"


def _drain(host: str, suspect: Suspect, about: HuntSummary) -> dict[str, Any]:
    """Return the commands for the node of a host, or why it has none."""
    reported = about.nodes.get(host)
    name: str | None = host if reported is None else reported
    why_not = None
    if reported == "":
        why_not = f"the ranks of {_name(host)} report different node names: find the right one by hand"
    elif reported is None and about.pods and about.manager != SLURM:
        why_not = _sentence(
            f"{_name(host)} is a pod on an unknown node: look the node up, or set NODE_NAME in the pods (from spec.nodeName) and run the "
            "hunt again"
        )
    elif name is not None and not is_name(name):
        why_not = f"{_name(name)!r} is not a valid node name: find the right one by hand"
    if why_not:
        name = None
    fault = f"{CODES[suspect.kind]} {name or printable(host, 100)} {what(suspect.kind, suspect.ratio)}"
    reason = reason_of(f"{fault}, run {about.run.name[:80]}")
    ways = _both_ways(name, reason) if name else {}
    here = ways.get(about.manager, {"line": None, "undo": None})
    return {
        "host": _name(host),
        "node": name,
        "code": CODES[suspect.kind],
        "reason": reason,
        **here,
        "if_slurm": None if about.manager else ways.get(SLURM),
        "if_kubernetes": None if about.manager else ways.get(KUBERNETES),
        "no_line": why_not,
        "look_up": pod_lookup_line(host) if about.pods and why_not and is_name(host) else None,
    }


def _name(text: str) -> str:
    return printable(text[:_LONGEST_NAME], _LONGEST_NAME)


def _sentence(text: str) -> str:
    return printable(text[:_LONGEST_SENTENCE], _LONGEST_SENTENCE)


# Drain the nodes: the limit, and what was done.

BEGUN, DRAINED, LEFT, FAILED = "begun", "drained", "left", "failed"
DEFAULT_CAP = "2%"
_CAP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%|([0-9]{1,9})", re.ASCII)
_FORMS = "use a percentage of the cluster's nodes (--max-drain 2%) or a number of nodes (--max-drain 3)"


@dataclass(frozen=True)
class Cap:
    """The largest number of nodes that collbench may drain in total: a percentage of all nodes (at least one node), or a number.

    text  as typed
    """

    text: str
    percent: Fraction | None = None
    count: int = 0

    def of(self, nodes: int) -> int:
        """Return the limit for a cluster of so many nodes; a percentage is rounded up."""
        return self.count if self.percent is None else max(1, ceil(self.percent * nodes / 100))


@dataclass
class Applied:
    """The result of `apply`.

    entries  one per node, as in recommendation.json: node, action ("drained", "left" or "failed"), why, line, undo, when
    refused  why no node was drained; "": nodes were, or there were none to drain
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    refused: str = ""

    @property
    def undo(self) -> list[str]:
        """Return the commands that return the drained nodes to service."""
        return [entry["undo"] for entry in self.entries if entry["undo"]]

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
    answer = [name for name, (found, _) in results.items() if found is not None]
    if len(answer) > 1:
        raise UsageError("--apply: this host has both Slurm and Kubernetes, and neither started this launch: start it with srun or in "
                         "pods, or omit --apply and run the commands of recommendation.json")  # fmt: skip
    if not answer:
        failed = " and ".join(f"{TOOLS[name]} does not work ({why})" for name, (_, why) in results.items()) or "neither is installed here"
        raise UsageError(f"--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, but {failed}: start the "
                         "hunt on a host with one of them, or omit --apply and run the commands of recommendation.json there")  # fmt: skip
    return answer[0]


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
    refused, managed = _not_applicable(content), None
    if not refused:
        managed, why = nodes(content["manager"], env, run)
        refused = f"{TOOLS[content['manager']]} does not list the nodes ({why}); the commands are in recommendation.json"
    if managed is None:
        return Applied(refused=f"no node is drained: {refused}")
    by_name = {node.name: node for node in managed}
    new = sum(drain["node"] not in by_name or not by_name[drain["node"]].drained for drain in content["drains"])
    already, most = sum(node.drained_by_collbench for node in managed), cap.of(len(managed))
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

    name, tool = drain["node"], TOOLS[manager]
    if earlier is not None and earlier.drained:
        reason = f" ({earlier.reason})" if earlier.reason else ""
        yield entry(LEFT, f"{name} is already drained{reason}; left unchanged")
        return
    if not name or not is_name(name):
        yield entry(FAILED, f"{drain['host']} is not drained: {drain['no_line'] or 'it is not a valid node name'}")
        return
    command, undo = drain_command(manager, name, drain["reason"]), line(undo_command(manager, name))
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
