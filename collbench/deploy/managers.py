"""Who gives out the nodes here, Slurm or Kubernetes: what its nodes are called, which of them are drained, and the words that drain one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from collbench.machine.readers.text import printable

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
