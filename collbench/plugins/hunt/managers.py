"""The cluster manager, Slurm or Kubernetes: its names of the nodes, the drained nodes, and the commands that drain one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from collbench.machine.readers.text import printable

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


class CommandOutcome(msgspec.Struct, frozen=True):
    """The outcome of a command: its exit code (None: it did not start, or timed out), stdout, why it failed ("": it succeeded)."""

    code: int | None
    out: str = ""
    why: str = ""


Run = Callable[[Sequence[str], Mapping[str, str]], CommandOutcome]


class ManagedNode(msgspec.Struct, frozen=True):
    """A node as its manager reports it. Kubernetes records no reason, so each cordoned node counts as `drained_by_collbench`."""

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
    by_host: dict[str, str] = {}
    for host, name in pairs:
        if name:
            by_host[host] = name if by_host.get(host, name) == name else ""
    return by_host


def is_name(text: str) -> bool:
    """Return whether a text is the name of one node, without characters that are special to a shell or a manager."""
    return bool(_NAME.fullmatch(text)) and text.lower() != _ALL_NODES


def reason_of(text: str) -> str:
    """Return the reason of a drain: with the mark of collbench, one line, without special characters, of limited length."""
    clean = _NOT_IN_A_REASON.sub("?", text)
    return (MARK + (clean if len(clean) <= LONGEST_REASON else f"{clean[: LONGEST_REASON - 4]} ...")).strip()


def drain_command(manager: str, name: str, reason: str) -> list[str]:
    """Return the command that drains a node. Raises ValueError for an invalid name, or a reason that is not from `reason_of`."""
    is_reason = reason.startswith(MARK.strip()) and len(reason) <= len(MARK) + LONGEST_REASON and not _NOT_IN_A_REASON.search(reason)
    if not is_name(name) or not is_reason:
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
    managed = []
    if manager == SLURM:
        outcome = run(["scontrol", "--all", "--oneliner", "show", "nodes", *names], env)
        for node, state, reason in _SLURM_NODE.findall(outcome.out):
            drained = "DRAIN" in state
            managed.append(ManagedNode(node, drained, drained and reason.startswith(MARK.strip()), printable(reason)))
    else:
        fields = r'{.metadata.name}{" "}{.spec.unschedulable}{"\n"}'
        output = fields if name else f"{{range .items[*]}}{fields}{{end}}"
        timeout = f"--request-timeout={TIMEOUT_S / 2:g}s"
        outcome = run(["kubectl", "get", "nodes", *names, timeout, f"--output=jsonpath={output}"], env)
        for row in filter(None, map(str.split, outcome.out.splitlines())):
            cordoned = row[1:] == ["true"]
            managed.append(ManagedNode(row[0], cordoned, cordoned))
    if outcome.code == 0 and managed:
        return managed, ""
    return None, outcome.why or "it lists no nodes"


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
    written = [printable(text) for text in f"{done.stdout}\n{done.stderr}".splitlines()]
    last = next(filter(None, reversed(written)), "")
    why = "" if done.returncode == 0 else last or f"{words[0]} ended with exit code {done.returncode}"
    return CommandOutcome(done.returncode, done.stdout, why)
