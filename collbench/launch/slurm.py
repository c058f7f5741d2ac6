"""srun: a Slurm step's SLURM_* variables. A batch script or salloc shell is an allocation without a step, and has no
ranks.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from collbench.addresses import LOOPBACK, is_loopback, is_numeric, resolve
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo, ancestors, master, meeting_at, number, place

SCONTROL_TIMEOUT_S = 10.0
_SCANCEL_TIMEOUT_S = 3.0
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h: 4294967290 interactive, …291 batch, …292 extern
_NODE_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")


def detect(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return this task of a Slurm step, or None outside one. Raises UsageError for an invalid variable or first node's name."""
    if not in_step(env):
        return None
    rank, ranks = place(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS")
    hosts = hosts_of(env)
    local_rank, local_ranks = _local_place(env, ranks)
    host, port = master(env)
    meets = host or _first_host(env, hosts, ranks)
    if ranks > local_ranks:
        _refuse_loopback(env, hosts, meets, "MASTER_ADDR" if host else "NodeAddr")
    token = f"slurm:{env.get('SLURM_CLUSTER_NAME', '')}:{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}"
    advice: tuple[str, ...] = ()
    if ranks == 1:
        advice = (SINGLE_TASK,)
    elif env.get("SLURM_KILL_BAD_EXIT") != "1":
        advice = (RANKS_NOT_ENDED,)
    return LaunchInfo(
        "srun", rank, ranks, local_rank, local_ranks, meeting_at(meets), token, port, _manager(env), hosts, advice,
        node=env.get("SLURM_NODEID", ""), facts={"srun_mpi": env.get("SLURM_MPI_TYPE", "none")},
    )  # fmt: skip


def in_allocation(env: Mapping[str, str]) -> bool:
    """Return whether this process runs inside a Slurm allocation, in a step or not."""
    return bool(env.get("SLURM_JOB_ID"))


def in_step(env: Mapping[str, str]) -> bool:
    """Return whether srun started this process as a task. Raises UsageError for an invalid step id."""
    if not env.get("SLURM_JOB_ID") or not env.get("SLURM_STEP_ID"):
        return False
    text = env["SLURM_STEP_ID"].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UsageError(f"SLURM_STEP_ID={env['SLURM_STEP_ID']!r} is not a valid step number: unset it, or start the command with srun")
    if int(text) >= _FIRST_SPECIAL_STEP:
        return False
    # sbatch inside a step passes that step's variables to the batch script; the title of slurmstepd is reliable
    return not re.fullmatch(r"slurmstepd: \[\d+\.(batch|extern|interactive)\]", _stepd_title())


def _stepd_title() -> str:
    for pid, name, _ in ancestors():
        if name == "slurmstepd":
            try:
                return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                return ""
    return ""


def hosts_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of this step, or of the job outside of one. Raises UsageError if the variable is not a host list."""
    import hostlist

    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in env else "SLURM_JOB_NODELIST"
    try:
        hosts = tuple(hostlist.expand_hostlist(env.get(name, "")))
    except (hostlist.BadHostlist, ValueError, RecursionError) as error:
        raise UsageError(
            f"{name}={env.get(name, '')!r} is not a valid host list ({error}): start the command with srun, or unset it"
        ) from error
    if not hosts:
        raise UsageError(f"{name} is empty inside a Slurm step: start the command with srun, or unset SLURM_STEP_ID")
    return hosts


def end_of_step(info: LaunchInfo, env: Mapping[str, str]) -> Callable[[], None] | None:
    """Return a function that kills every task of this step, also stopped ones.

    None outside a step, and if Slurm kills them itself. Without --kill-on-bad-exit the step's other tasks wait forever if one
    has failed.
    """
    if info.launcher != "srun" or env.get("SLURM_KILL_BAD_EXIT") == "1":
        return None
    step = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"

    def cancel() -> None:
        import subprocess

        with suppress(OSError, subprocess.TimeoutExpired):  # without scancel here, Slurm's time limit ends the step
            subprocess.run(["scancel", "--signal=KILL", step], capture_output=True, timeout=_SCANCEL_TIMEOUT_S, check=False)

    return cancel


def _local_place(env: Mapping[str, str], ranks: int) -> tuple[int, int]:
    import hostlist

    name = "SLURM_STEP_TASKS_PER_NODE"
    local_rank = number(env, "SLURM_LOCALID", 0)
    node = number(env, "SLURM_NODEID", 0)
    try:
        local_ranks = int(hostlist.parse_slurm_tasks_per_node(env[name])[node])
    except (hostlist.BadHostlist, KeyError, IndexError, ValueError) as error:
        raise UsageError(
            f"{name}={env.get(name)!r} does not have the tasks of node {node}: start the command with srun, or unset it"
        ) from error
    if not local_rank < local_ranks <= ranks:
        raise UsageError(
            f"SLURM_LOCALID={local_rank} contradicts {name}={env[name]!r} and {ranks} tasks: start the command with srun, or unset it"
        )
    return local_rank, local_ranks


def _manager(env: Mapping[str, str]) -> str | None:
    step = f"{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}"
    # an inner srun --mpi=none inherits an outer step's variables, so only this step's own are used
    if env.get("PMIX_NAMESPACE", "").endswith(f".{step}") and "PMIX_RANK" in env:
        return "pmix"
    if "PMI_SIZE" in env and env.get("PMI_JOBID", step) == step:
        return "pmi"
    return "pmi" if "PMI_CONTROL_PORT" in env else None  # of Cray


SINGLE_TASK = "this Slurm step has one task: use srun -n N to start N ranks, or --ranks N to start them on this host"
RANKS_NOT_ENDED = (  # a task cannot see srun's option, only its variable
    "without srun's --kill-on-bad-exit=1, Slurm does not end the other ranks when one fails (export SLURM_KILL_BAD_EXIT=1 has the same "
    "effect, and removes this note)"
)


def _first_host(env: Mapping[str, str], hosts: tuple[str, ...], ranks: int) -> str:
    """Return rank 0's host. Raises UsageError if it is not known, or does not resolve."""
    if ranks == 1:
        return LOOPBACK
    if env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") and len(hosts) > 1:
        raise UsageError("with srun --distribution=arbitrary the host of rank 0 is not known: export MASTER_ADDR with that host's name")
    return host_of_node(hosts[0], own_name=own_node(env))


def own_node(env: Mapping[str, str]) -> str:
    """Return the Slurm node name of this host; empty if it is unknown or a host may have several nodes."""
    node = env.get("SLURMD_NODENAME", "")
    return node if node.partition(".")[0] == socket.gethostname().partition(".")[0] else ""


def host_of_node(node: str, own_name: str = "") -> str:
    """Return the name of a Slurm node, or the NodeAddr that `scontrol` reports if the name does not resolve correctly.

    own_name: the node that this host is, if that is certain. On another host a name that resolves to loopback is wrong. On the
    host itself it is correct: Debian's /etc/hosts has it, and other hosts resolve it differently. Raises UsageError if neither
    resolves.
    """
    addresses = resolve(node)
    if addresses and not (own_name and own_name != node and all(map(is_loopback, addresses))):
        return node
    address = _node_address(node)
    if resolve(address):
        return address
    if addresses:
        return node
    raise UsageError(
        f"Slurm's first node '{node}' does not resolve to an address on this host ({socket.gethostname()}): "
        "export MASTER_ADDR=<address of that node>, or fix DNS or /etc/hosts"
    )


def known_addresses(node: str) -> tuple[str, ...]:
    """Return the addresses of a node's NodeAddr, as `scontrol` reports it; empty if unknown."""
    return resolve(_node_address(node))


def _refuse_loopback(env: Mapping[str, str], hosts: tuple[str, ...], host: str, origin: str) -> None:
    """Raise UsageError if ranks on several hosts would connect to a loopback address, which no other host can reach."""
    own_name = own_node(env)
    addresses = resolve(host)
    others = [name for name in hosts if name != own_name]
    if not own_name or not others or not addresses or not all(map(is_loopback, addresses)):
        return
    if is_numeric(host) or host == "localhost":
        raise UsageError(
            f"{origin}={host} is a loopback address, which ranks on other hosts ({others[0]}) cannot reach: "
            f"set MASTER_ADDR to an address of {hosts[0]} in the network between the hosts"
        )
    if host == hosts[0] != own_name:
        raise UsageError(
            f"rank 0's host '{host}' resolves to {addresses[0]} on {own_name}, a loopback address: fix /etc/hosts on {own_name}, "
            f"or set MASTER_ADDR to an address of {host}"
        )


def _node_address(node: str) -> str:
    if not _NODE_NAME.fullmatch(node):
        return ""
    import subprocess  # the import takes 10 ms, and only clusters without names need it

    command = ["scontrol", "show", "node", "-o", node]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S, check=False, env=dict(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
    return match[1] if match else ""
