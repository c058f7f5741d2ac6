"""Takes nodes out of use that a hunt confirmed (`--apply`): so many at most, none without a verdict, and says how to bring them back."""

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

from collbench.analysis.hunt.protocol import CONFIRMED, Suspect, Verdict
from collbench.analysis.pairs import hosts_of
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.machine.readers.text import printable
from collbench.results.folder import utc
from collbench.results.store import read_object, replace, to_page
from collbench.units import format_percent

# Who gives out the nodes here, Slurm or Kubernetes: what its nodes are called, which of them are drained, and the words that drain one.

SLURM, KUBERNETES = "slurm", "kubernetes"
TOOLS = {SLURM: "scontrol", KUBERNETES: "kubectl"}
MARK = "[collbench] "  # how the reason of each drain of ours begins, that of the node check, too
TIMEOUT_S = 20.0
LONGEST_REASON = 200
# A host's name: letters, digits, "-" and "_" between dots. Slurm would take node[1-9], node1,node2 and ALL for many nodes.
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?)*", re.ASCII)
_EVERYBODY = "all"
_NOT_IN_A_REASON = re.compile(r"[^A-Za-z0-9 .,:;?%/_+()\[\]@#=-]", re.ASCII)  # what a shell, Slurm or a terminal might mistake
_SLURM_NODE = re.compile(r"^NodeName=(\S+).*? State=(\S+)(?:.*? Reason=(.*?)(?: \[[^][]*\])?\s*$)?", re.MULTILINE)
_TOLD = {SLURM: "SLURMD_NODENAME", KUBERNETES: "NODE_NAME"}


@dataclass(frozen=True)
class Said:
    """What a command came to: its exit code (None: it did not start, or not end in time), its output, and why it failed, in few words."""

    code: int | None
    out: str = ""
    why: str = ""


Ask = Callable[[Sequence[str], Mapping[str, str]], Said]


@dataclass(frozen=True)
class Node:
    """A node as its manager tells it. ours: drained by collbench; of a cordoned node nobody can tell, it counts as ours."""

    name: str
    drained: bool = False
    ours: bool = False
    reason: str = ""


def manager_of(env: Mapping[str, str]) -> str:
    """Whose launch this is: SLURM in a job of Slurm's, KUBERNETES in a pod, "" in neither."""
    if env.get("SLURM_JOB_ID"):
        return SLURM  # which may run in pods itself
    return KUBERNETES if in_pod(env) else ""


def in_pod(env: Mapping[str, str]) -> bool:
    """Whether this is a pod: then the name of its host is not its node's."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def node_here(env: Mapping[str, str]) -> str | None:
    """What the manager calls this process's node: SLURMD_NODENAME of Slurm's tasks, NODE_NAME of pods that are told it; else None."""
    manager = manager_of(env)
    return env.get(_TOLD[manager]) or None if manager else None


def node_names(told: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """By host its node's name, of pairs of both that ranks told; "" where ranks of one host tell different ones."""
    found: dict[str, str] = {}
    for host, name in told:
        if name:
            found[host] = name if found.get(host, name) == name else ""
    return found


def is_name(text: str) -> bool:
    """Whether it names one node, and nothing that a shell or a manager takes for something else."""
    return bool(_NAME.fullmatch(text)) and text.lower() != _EVERYBODY


def reason_of(text: str) -> str:
    """The reason of a drain: marked as ours, one line, without what a shell or Slurm could mistake, of bounded length."""
    clean = _NOT_IN_A_REASON.sub("?", text)
    return (MARK + (clean if len(clean) <= LONGEST_REASON else f"{clean[: LONGEST_REASON - 4]} ...")).strip()


def drain_words(manager: str, name: str, reason: str) -> list[str]:
    """The command that takes the node out of use. Raises ValueError for what names no node, or a reason that is not ours."""
    ours = reason.startswith(MARK.strip()) and len(reason) <= len(MARK) + LONGEST_REASON and not _NOT_IN_A_REASON.search(reason)
    if not is_name(name) or not ours:
        raise ValueError(f"not a node's name and a reason of collbench's: {name!r}, {reason!r}")
    if manager == SLURM:
        return ["scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"]
    return ["kubectl", "cordon", name]


def undo_words(manager: str, name: str) -> list[str]:
    """The command that brings the node back. Raises ValueError for what names no node."""
    if not is_name(name):
        raise ValueError(f"not a node's name: {name!r}")
    return ["scontrol", "update", f"NodeName={name}", "State=RESUME"] if manager == SLURM else ["kubectl", "uncordon", name]


def look_line(host: str) -> str:
    """What tells on which node a pod is, by its host's name: the name of an indexed job's pod is longer. Raises ValueError for none."""
    if not is_name(host):
        raise ValueError(f"not a host's name: {host!r}")
    return f"kubectl get pods --all-namespaces --output=wide | grep -F -e {shlex.quote(host)}"


def line(words: Sequence[str]) -> str:
    """The command as it is typed: each word quoted where it needs to be, a reason as people write it."""
    return " ".join(_typed(word) for word in words)


def _typed(word: str) -> str:
    name, _, value = word.partition("=")
    return f'{name}="{value}"' if name == "Reason" and not _NOT_IN_A_REASON.search(value) else shlex.quote(word)


def nodes(manager: str, env: Mapping[str, str], ask: Ask, name: str = "") -> tuple[list[Node] | None, str]:
    """All nodes that the manager has, or the one of that name; None and why, in few words, where it does not tell."""
    if manager == SLURM:
        said = ask(["scontrol", "--all", "--oneliner", "show", "nodes", *[name] * bool(name)], env)
        found = _of_slurm(said.out)
    else:
        said = ask(
            ["kubectl", "get", "nodes", *[name] * bool(name), f"--request-timeout={TIMEOUT_S / 2:g}s", f"--output={_each(name)}"], env
        )
        found = _of_kubernetes(said.out)
    if said.code == 0 and found:
        return found, ""
    return None, said.why or "it tells of no node"


def _each(name: str) -> str:
    fields = r'{.metadata.name}{" "}{.spec.unschedulable}{"\n"}'
    return f"jsonpath={fields if name else f'{{range .items[*]}}{fields}{{end}}'}"


def _of_slurm(text: str) -> list[Node]:
    found = []
    for name, state, reason in _SLURM_NODE.findall(text):
        drained = "DRAIN" in state
        found.append(Node(name, drained, drained and reason.startswith(MARK.strip()), printable(reason)))
    return found


def _of_kubernetes(text: str) -> list[Node]:
    rows = [row.split() for row in text.splitlines() if row.strip()]
    return [Node(row[0], row[1:] == ["true"], row[1:] == ["true"]) for row in rows]


def ask_here(words: Sequence[str], env: Mapping[str, str]) -> Said:
    """Runs a manager's command, without a shell, in English, for TIMEOUT_S at most."""
    import subprocess

    try:
        done = subprocess.run(
            list(words), env={**env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Said(None, why=f"{words[0]} did not answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Said(None, why=f"{words[0]} cannot be started ({error.strerror or error})")
    last = next((text for each in reversed(f"{done.stdout}\n{done.stderr}".splitlines()) if (text := printable(each))), "")
    return Said(done.returncode, done.stdout, "" if done.returncode == 0 else last or f"{words[0]} ended with code {done.returncode}")


# What to do about it: recommendation.json, with a stable code for each kind of fault and the exact line that drains a node.

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
        "no_verdict": _sentence(str(verdict.no_verdict)) if verdict.no_verdict else None,
        "no_drain": _sentence(about.no_drain) if about.no_drain else None,
        "notes": [_sentence(str(note)) for note in verdict.notes[:_MOST_SENTENCES]],
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
    return found + [row for each in told["drains"] for row in _typed_recommendation(each)]


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
        "part": _name(str(suspect.part or "")),
        "partners": [_name(verdict.names[place]) for place in suspect.partners[:_MOST_SENTENCES]],
        "evidence": [_sentence(str(each)) for each in suspect.evidence[:_MOST_SENTENCES]],
        "advice": _advice(suspect, places),
    }


def _advice(suspect: Suspect, places: list[str]) -> str:
    who = " and ".join(places)
    if suspect.state != CONFIRMED:
        return f"{who} {'is' if len(places) == 1 else 'are'} {suspect.state}: nothing is to be done about it"
    if suspect.kind == _PATH:
        return f"look at the cable and the switch ports between {who}; both are well with others, so neither is to be drained"
    link = " and its link (NIC, cable, switch port)" if suspect.kind in _BY_MESSAGES else ""
    where = f" ({_name(str(suspect.part))})" if suspect.part else link
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


def _typed_recommendation(drain: Mapping[str, Any]) -> list[str]:
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
