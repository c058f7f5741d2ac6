"""The tuner files of NCCL and RCCL, Open MPI and MPICH: only the sizes with a faster choice differ from the library's own decisions.

NCCL's and RCCL's example tuner plug-in reads lines of CSV and leaves the algorithm of all that no line matches to the library
(plugins/tuner/example of NCCL). NCCL's also returns one channel for all that no line gives channels to, see `ONE_CHANNEL`. Open MPI's
component `tuned` reads rules by collective, number of ranks and size; algorithm 0 is its own decision (docs.open-mpi.org, "Tuning
Collectives"). MPICH's file replaces its built-in decisions as a whole, so the rules are put before those that its library contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from collbench.analysis.launches import grouped
from collbench.errors import UsageError
from collbench.machine.peak.time_model import plain_name
from collbench.operations.sweep import PROTOCOLS
from collbench.plugins.tune.sweep import COLLECTIVES, Choice, Library, Override
from collbench.report.frame import printable
from collbench.results.reader import Run
from collbench.untrusted import list_of, parse_json

# What makes each library read a file, as the assignments of a shell.
USE: Mapping[Library, str] = {
    "nccl": "NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE={}",
    "openmpi": "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename={}",
    "mpich": "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE={}",
}
# NCCL replaces its own number of channels by that of the plug-in unless it is 0. RCCL's plug-in returns 0 since ROCm/rccl#1985.
ONE_CHANNEL = (
    "NCCL's example plug-in limits every collective to one channel where the file has no number of channels: replace *nChannels = 1 by "
    "*nChannels = 0 in its plugin.c before you build it"
)
_NCCL_COLLECTIVES = ("allgather", "allreduce", "broadcast", "reduce", "reducescatter")
# The names of NCCL_ALGO and those of the plug-in's file, which takes any other name for "ring", or for the protocol "simple".
_NCCL_ALGORITHMS = {
    "ring": "ring", "tree": "tree", "collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvls": "nvls",
    "nvlstree": "nvls_tree", "pat": "pat",
}  # fmt: skip
# Open MPI's numbers of collectives (coll_base_functions.h) and of the algorithms of its component `tuned`, by their names.
_OPEN_MPI_NUMBERS = {"allgather": 0, "allreduce": 2, "broadcast": 7, "reduce": 11}
_OPEN_MPI_ALGORITHMS = {
    "allgather": ("ignore", "linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc", "sparbit"),
    "allreduce": ("ignore", "basic_linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring", "rabenseifner",
                  "allgather_reduce"),
    "broadcast": ("ignore", "basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial",
                  "scatter_allgather", "scatter_allgather_ring"),
    "reduce": ("ignore", "linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner", "knomial"),
}  # fmt: skip
# MPICH: the collective's name in the file and in algorithms, and the key of the size; algorithms that need no parameter.
_MPICH_NAMES = {"allgather": "allgather", "allreduce": "allreduce", "broadcast": "bcast", "reduce": "reduce"}
_MPICH_SIZES = {"allgather": "total_msg_size", "allreduce": "avg_msg_size", "broadcast": "avg_msg_size", "reduce": "avg_msg_size"}
_MPICH_ALGORITHMS = {
    "allgather": ("brucks", "recursive_doubling", "ring"),
    "allreduce": ("recursive_doubling", "reduce_scatter_allgather"),
    "broadcast": ("binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"),
    "reduce": ("binomial", "reduce_scatter_gather"),
}
_REDUCING = frozenset({"allreduce", "reduce"})
_BUILT_IN = re.compile(rb'\{"collective=bcast":[^\x00]*MPIR_Bcast_intra_binomial[^\x00]*')


def refusal(library: Library, override: Override) -> str | None:
    """Return why a library's file cannot have a range; None if it can."""
    algorithm = override.choice.algorithm
    if library == "nccl":
        if override.operation not in _NCCL_COLLECTIVES:
            return f"NCCL's tuner does not choose for {override.operation}"
        if not algorithm or not override.choice.protocol:
            return "a line of NCCL's file has algorithm and protocol: sweep with --algorithms and --protocols"
        if plain_name(algorithm) not in _NCCL_ALGORITHMS or override.choice.protocol not in PROTOCOLS:
            return "a line of NCCL's file has one algorithm and one protocol, by their names"
    elif library == "openmpi" and _open_mpi_number(override) is None:
        return f"Open MPI's file has numbers of algorithms, and that of {override.operation} {algorithm} is unknown"
    elif library == "mpich" and algorithm not in _MPICH_ALGORITHMS[override.operation]:
        return f"MPICH's {override.operation} {algorithm} needs parameters, which a sweep of algorithms does not have"
    return None


def file_of(library: Library, overrides: Sequence[Override], runs: Sequence[Run], head: Sequence[str]) -> str:
    """Return the text of the library's file with these ranges, none of which is refused.

    head  sentences for comments; MPICH's file has none. Raises UsageError if MPICH's built-in decisions cannot be read.
    """
    if library == "nccl":
        return _nccl(overrides, head)
    if library == "openmpi":
        return _open_mpi(overrides, head)
    return json.dumps(_mpich(overrides, _decisions(runs)), indent=1) + "\n"


def _nccl(overrides: Sequence[Override], head: Sequence[str]) -> str:
    lines = [f"# {sentence}" for sentence in head]
    lines.append("# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff")
    for override in overrides:
        choice = override.choice
        fields = (
            override.operation, override.first_bytes, override.last_bytes, _NCCL_ALGORITHMS[plain_name(choice.algorithm)],
            choice.protocol, choice.channels, override.nodes, override.ranks, -1, -1,
        )  # fmt: skip
        lines.append(",".join(map(str, fields)))
    return "\n".join(lines) + "\n"


def _open_mpi_number(override: Override) -> int | None:
    algorithm = override.choice.algorithm
    names = _OPEN_MPI_ALGORITHMS.get(override.operation, ())
    if algorithm.isdigit():
        return int(algorithm)
    return names.index(algorithm) if algorithm in names else None


def _open_mpi(overrides: Sequence[Override], head: Sequence[str]) -> str:
    """Rules hold from their number of ranks and their size upwards, so each range is followed by one that hands the choice back."""
    lines = [f"# {sentence}" for sentence in head]
    by_operation = grouped(overrides, attrgetter("operation"))
    lines.append(f"{len(by_operation)}  # collectives")
    for operation, members in by_operation.items():
        by_ranks = grouped(sorted(members, key=attrgetter("ranks", "first_bytes")), attrgetter("ranks"))
        rules: dict[int, list[tuple[int, int, int]]] = {}
        for ranks, ranges in by_ranks.items():
            rules[ranks] = _open_mpi_sizes(ranges)
            if ranks + 1 not in by_ranks:
                rules[ranks + 1] = [(0, 0, 0)]
        lines += [f"{_OPEN_MPI_NUMBERS[operation]}  # {operation}", f"{len(rules)}  # numbers of ranks"]
        for ranks in sorted(rules):
            lines += [f"{ranks}  # ranks", f"{len(rules[ranks])}  # sizes"]
            lines += [f"{size} {algorithm} 0 {segment}" for size, algorithm, segment in rules[ranks]]
    return "\n".join(lines) + "\n"


def _open_mpi_sizes(ranges: Sequence[Override]) -> list[tuple[int, int, int]]:
    """Return (size, algorithm, segment) of each rule, from size 0 on: without that one Open MPI ignores the others."""
    rules: dict[int, tuple[int, int]] = {0: (0, 0)}
    for override in ranges:
        number = _open_mpi_number(override)
        assert number is not None
        rules[override.first_bytes] = (number, override.choice.segment_bytes)
        rules[override.last_bytes + 1] = (0, 0)
    return [(size, *rules[size]) for size in sorted(rules)]


def _decisions(runs: Sequence[Run]) -> dict[str, Any]:
    """Return MPICH's built-in decisions, from the library that a run had loaded. Raises UsageError."""
    paths = {path for run in runs for path in list_of(run.info.get("libraries"), str) if Path(path).name.startswith("libmpi.so")}
    for path in sorted(paths):
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        text = _BUILT_IN.search(data)
        if text:
            decisions = parse_json(text[0])
            assert isinstance(decisions, dict)
            return decisions
    places = ", ".join(sorted(paths)) or "unknown"
    raise UsageError(
        f"the built-in decisions of MPICH, which its file must contain, cannot be read from the library that was measured ({places}): "
        "run this on a host that has it"
    )


def _mpich(overrides: Sequence[Override], decisions: dict[str, Any]) -> dict[str, Any]:
    """Return the built-in decisions with the ranges before them, for communicators of one group of exactly so many ranks."""
    changed = dict(decisions)
    for operation, members in grouped(overrides, attrgetter("operation")).items():
        key = f"collective={_MPICH_NAMES[operation]}"
        collective = dict(changed[key])
        built_in = collective["comm_type=intra"]
        by_ranks = grouped(sorted(members, key=attrgetter("ranks", "first_bytes")), attrgetter("ranks"))
        intra: dict[str, Any] = {}
        for ranks, ranges in by_ranks.items():
            intra[f"comm_size<{ranks}"] = built_in
            intra[f"comm_size<={ranks}"] = _mpich_sizes(operation, ranges, built_in)
        intra["comm_size=any"] = built_in
        collective["comm_type=intra"] = intra
        changed[key] = collective
    return changed


def _mpich_sizes(operation: str, ranges: Sequence[Override], built_in: dict[str, Any]) -> dict[str, Any]:
    measure = _MPICH_SIZES[operation]
    sizes: dict[str, Any] = {}
    for override in ranges:
        sizes[f"{measure}<{override.first_bytes}"] = built_in
        sizes[f"{measure}<={override.last_bytes}"] = _mpich_choice(operation, override.choice, built_in)
    sizes[f"{measure}=any"] = built_in
    return sizes


def _mpich_choice(operation: str, choice: Choice, built_in: dict[str, Any]) -> dict[str, Any]:
    """A reduction was measured with a built-in operation: another one, and fewer elements than an algorithm needs, keep MPICH's choice."""
    name = _MPICH_NAMES[operation]
    forced: dict[str, Any] = {f"algorithm=MPIR_{name.capitalize()}_intra_{choice.algorithm}": {}}
    if operation not in _REDUCING:
        return forced
    return {"is_op_built_in=yes": {"count<pow2": built_in, "count=any": forced}, "is_op_built_in=no": built_in}


def sweep_commands(library: Library, operation: str, launches: int) -> list[str]:
    """Return the lines of a shell that measure the own choice and each forced one. Raises UsageError for an operation without choices."""
    measure = f"collbench {operation} --sizes 8-4M --launches {launches}"
    if library == "nccl":
        _check_operation(operation, _NCCL_COLLECTIVES)
        return [f"{measure} --backend nccl --algorithms ring,tree,nvls --protocols simple,ll,ll128 --out runs/sweep"]
    algorithms = _MPICH_ALGORITHMS if library == "mpich" else _OPEN_MPI_ALGORITHMS
    _check_operation(operation, algorithms)
    names = [name for name in algorithms[operation] if name != "ignore"]
    lines = [f"{measure} --backend mpi --out runs/own"]
    for name in names:
        lines.append(f"{_variables(library, operation, name)} {measure} --backend mpi --out runs/{name}")
    lines.append(f"collbench tune runs/own {' '.join(f'runs/{name}' for name in names)} --out tuned")
    return lines


def _check_operation(operation: str, choices: Iterable[str]) -> None:
    if operation not in choices:
        raise UsageError(f"the library's file has no choice for '{printable(operation)}': choose from {', '.join(choices)}")


def _variables(library: Library, operation: str, algorithm: str) -> str:
    """Return the assignments that force an algorithm of a collective of an MPI library."""
    name = next(name for name, collective in COLLECTIVES.items() if collective == operation)
    if library == "mpich":
        return f"MPIR_CVAR_{name}_INTRA_ALGORITHM={algorithm}"
    return f"OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_{name.lower()}_algorithm={algorithm}"
