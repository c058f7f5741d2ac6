"""The help pages: examples first, then the common options; --help-all adds the expert options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from textwrap import wrap

from collbench.units import plural

# Options that few users need, by the name of their value. Commands that need one of them list it in _COMMON_IN.
_EXPERT = frozenset(
    {
        "minimum", "maximum", "factor", "increment", "device", "split", "skew", "traffic", "buffers", "in_place", "out_of_place", "window",
        "streams", "calls", "overlap",
        "algorithms", "protocols", "registration", "warmup", "precision", "stop_on_wrong", "ceiling", "oversubscription", "seed",
        "evidence", "telemetry", "slowed", "oversubscribe", "ranks_per_node", "gdr_check", "timeout", "allocation", "resume",
        "resume_if_exists", "color", "quiet", "no_config", "latency_size", "concurrent", "no_isolation", "no_growing", "trace", "nvtx",
        "commit",
    }
)  # fmt: skip
_COMMON_IN: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("alltoallv", "allgatherv"), frozenset({"skew", "traffic"})),
    **dict.fromkeys(("gatherv", "scatterv", "reducescatterv"), frozenset({"traffic"})),  # a page has at most 20 lines of options
    "import": frozenset({"ceiling", "allocation"}),
    "peak": frozenset({"oversubscription"}),
    "report": frozenset({"trace"}),
}
_EXPERT_IN: Mapping[str, frozenset[str]] = {
    "workload": frozenset(
        {
            "bucket", "update", "servers", "layers", "hidden", "sequence", "microbatch", "microbatches", "stages", "tensor", "experts",
            "top_k", "imbalance", "routing", "routings", "dispatch_dtype", "combine_dtype",
        }
    ),
    "emit": frozenset(
        {
            "cpus_per_rank", "port", "group", "kind", "namespace", "pull_policy", "volume", "rdma", "hugepages", "shm", "memory", "runtime",
            "library", "interface", "bind", "system", "qos", "gpu_type", "mpi", "array", "container", "rendezvous", "endpoint", "program",
        }
    ),
    "run": frozenset({"dtype", "redop", "root", "in_place", "mode", "check", "iterations"}),
    **dict.fromkeys(("gate", "history", "report"), frozenset({"node", "label", "since", "until"})),
}  # fmt: skip

# What follows "collbench" in the three examples of a command, and what it does. {0}: the operation.
_OF_OPERATIONS = (
    ("{0}", "every available backend, on this host"),
    ("{0} --backend nccl --sizes 1M-1G", "large sizes over NCCL"),
    ("emit slurm --nodes 2 -- {0}", "write a Slurm script for two nodes"),
)
_EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "alltoallv": (
        ("alltoallv", "every available backend, on this host"),
        ("alltoallv --skew 4", "rank 0 receives four times the average"),
        ("alltoallv --traffic bytes.csv", "the bytes from rank to rank of an application"),
    ),
    **{
        name: (
            (name, "every available backend, on this host"),
            (f"{name} --skew 2", "rank 0's part is twice the average"),
            (f"{name} --traffic bytes.txt", "the bytes of each rank, one number per rank"),
        )
        for name in ("allgatherv", "gatherv", "scatterv", "reducescatterv")
    },
    **{
        name: (
            (f"{name} --backend mpi --ranks 4", "four ranks over MPI, the only backend that has it"),
            (f"{name} --backend mpi --redop max --in-place", "the maximum, in one buffer"),
            (f"emit slurm --nodes 2 -- {name} --backend mpi", "write a Slurm script for two nodes"),
        )
        for name in ("scan", "exscan")
    },
    "barrier": (
        ("barrier", "every available backend, on this host"),
        ("barrier --backend mpi --ranks 8", "eight ranks over MPI"),
        ("emit slurm --nodes 2 -- barrier", "write a Slurm script for two nodes"),
    ),
    "p2p": (
        ("p2p", "latency and bandwidth between two ranks on this host"),
        ("p2p --backend socket --streams 4", "four TCP connections per pair"),
        ("emit slurm --nodes 2 -- p2p", "write a Slurm script for two nodes"),
    ),
    "run": (
        ("run quick", "a minute: is everything installed, and are the results correct?"),
        ("run quick --dry-run", "print the cases and the estimated time"),
        ("run my-suite.toml --backend nccl", "your own suite, over NCCL only"),
    ),
    "workload": (
        ("workload data-parallel --model resnet50", "the exchanges of a training step, measured"),
        ("workload all --dry-run", "what each kind of training sends, without measuring"),
        ("workload data-parallel --step-time 180ms", "add the scaling efficiency for this computing time"),
    ),
    "load": (
        ("load --split 'MOD 2'", "8-byte all-reduce against incast, on the same nodes"),
        ("load --against incast,alltoall --ramp", "two patterns at five rates, by node"),
        ("load --preset gpcnet-latency", "victims and aggressors as in GPCNeT"),
    ),
    "kv": (
        ("kv --ranks 2", "all methods at three numbers and two sizes of blocks, with the costs"),
        ("kv --model llama-3.1-8b --tokens 512 --ranks 2", "the key-value cache of 512 tokens"),
        ("kv --model llama-3.1-70b --tp 4:2 --ranks 6", "from 4 tensor-parallel ranks to 2"),
    ),
    "replay": (
        ("replay traces/", "the step of a recorded job on every available backend"),
        ("replay traces/ --backend mpi --compute gaps", "over MPI, with the recorded computing"),
        ("replay traces/ --ranks 8", "on 8 ranks instead of the recorded number"),
    ),
    "kernels": (
        ("kernels", "every GPU of this host"),
        ("kernels --size 1G", "arrays of 1 GiB"),
        ("kernels --format jsonl", "one JSON object per line"),
    ),
    "pairs": (
        ("pairs", "all pairs of ranks on this host"),
        ("pairs --by node --sample 4", "four partners per node"),
        ("emit slurm --nodes 8 -- pairs", "write a Slurm script for eight nodes"),
    ),
    "hunt": (
        ("hunt --backend simulated --ranks 8", "try it without a cluster"),
        ("hunt --budget 5m", "stop after five minutes"),
        ("emit slurm --nodes 16 -- hunt", "write a Slurm script for sixteen nodes"),
    ),
    "doctor": (
        ("doctor", "check this node"),
        ("doctor --launch", "why does the launcher not start my ranks?"),
        ("doctor --log nccl.log", "explain a log of NCCL"),
    ),
    "autopsy": (
        ("autopsy dumps", "a folder with the dump of each rank of a hang"),
        ("autopsy trace_rank_*", "the files of PyTorch's Flight Recorder"),
        ("autopsy dumps --ranks 64 --html hang.html", "with the number of ranks of the job, and a page"),
    ),
    "predict": (
        ("predict runs --nodes 64", "64 nodes, from the runs at 2, 4, 8 and 16 in a folder"),
        ("predict runs --nodes 64,128 --operation allreduce --html predicted.html", "one operation, with a page"),
        ("predict --store runs.sqlite --nodes 64 --max-error 10 --format csv", "from a store, with a smaller maximum error"),
    ),
    "probe": (
        ("probe", "what this node is"),
        ("probe --measure", "measure memory and loopback too"),
        ("probe --format json", "everything as one JSON object"),
    ),
    "peak": (
        ("peak allreduce --nodes 2 --measured 42", "two nodes like this one, compared with a measured rate"),
        ("peak allreduce --gpus-per-node 8 --nvlink 450 --sizes 1M-1G", "the time of each size on 8 H100"),
        ("peak allreduce --gpus-per-node 8 --nvlink 450 --floor 85% --emit nhc", "a line for a node health check"),
    ),
    "explain": (
        ("explain", "list the topics"),
        ("explain busbw", "a column"),
        ("explain CB2101", "a finding of `collbench doctor`"),
    ),
    "backends": (
        ("backends", "which backends are available here, and why others are not"),
        ("backends --format jsonl", "one JSON object per line"),
        ("allreduce --backend gloo", "measure with one of them"),
    ),
    "check": (
        ("check", "is this machine, or this allocation, as fast as it should be?"),
        ("doctor", "look for wrong settings, without measuring"),
        ("pairs", "find the slow node or pair"),
    ),
    "runs": (
        ("runs", "list the runs in runs/"),
        ("report runs/my-run", "print one of them"),
        ("compare runs/before runs/after", "compare two of them"),
    ),
    "report": (
        ("report runs/my-run", "print a stored run"),
        ("report runs/my-run --html report.html", "write one page with charts and findings"),
        ("report runs --serve", "browse all runs of a folder"),
    ),
    "store": (
        ("store sync runs.db runs", "add new runs below `runs` to a store, and mark those that are gone"),
        ("store query runs.db --operation allreduce --sizes 64M --node node1", "print the history of one case on one host"),
        ("history --store runs.db", "how times changed, for all runs of the store"),
    ),
    "compare": (
        ("compare runs/before runs/after", "case by case"),
        ("compare runs/before runs/after --margin 10", "ignore differences up to 10 %"),
        ("compare runs/before runs/after --format markdown", "for a pull request"),
    ),
    "import": (
        ("import nccl-tests.txt --out runs/other", "make a run folder from a log"),
        ("import osu.txt --out runs/other --ranks 16 --nodes 2", "add what the log does not contain"),
        ("compare runs/other runs/my-run", "compare it with a run"),
    ),
    "baseline": (
        ("baseline add baseline runs/a runs/b", "add good runs to the baseline in folder `baseline`"),
        ("baseline show baseline", "print its cases and limits"),
        ("gate runs/new --baseline baseline", "compare a new run with it"),
    ),
    "history": (
        ("history baseline", "how times changed from allocation to allocation"),
        ("history baseline --format json", "for programs"),
        ("baseline show baseline", "print its cases and limits"),
    ),
    "gate": (
        ("gate runs/new --baseline baseline", "exit code 1: a regression"),
        ("gate runs/new --baseline baseline --out verdict.json", "write the verdict for programs"),
        ("gate --self-test --baseline baseline", "what would this baseline detect?"),
    ),
    "emit": (
        ("emit slurm --nodes 2 -- allreduce", "print a Slurm script"),
        ("emit slurm --nodes 2 --write job.sh -- run gate", "write it to a file"),
        ("emit kubernetes --nodes 2 -- allreduce --backend nccl", "a job for Kubernetes"),
    ),
    "trace": (
        ("trace -- torchrun --nproc-per-node 2 train.py", "record three steps of a job on this host"),
        ("trace --out /shared/traces -- srun -N2 python train.py", "of a job under Slurm, into a folder that the nodes share"),
        ("trace --hang 30 -- torchrun --nproc-per-node 2 train.py", "write the dumps of all ranks after 30 s without progress"),
    ),
    "plugins": (
        ("plugins", "what comes beside the core"),
        ("plugins --format jsonl", "one JSON object per line"),
        ("backends", "the libraries that measure"),
    ),
    "completion": (
        ("completion bash", "print the script for bash"),
        ("completion zsh", "print the script for zsh"),
        ("completion fish", "print the script for fish"),
    ),
}  # fmt: skip

# The commands by group. `collbench --help` has a line for each command of the first group, and one for each other group, whose name
# `collbench help` accepts. Operations are on one line. A command of no group is listed under the last one.
GROUPS = (
    (
        "Commands",
        ("check", "OPERATION", "run", "hunt", "doctor", "report", "compare", "gate", "peak", "emit", "import", "explain", "backends"),
    ),
    ("Training", ("workload", "replay", "trace", "autopsy", "kv", "load")),
    ("More", ("pairs", "probe", "kernels", "predict", "baseline", "history", "runs", "store", "plugins", "completion")),
)
_OPERATIONS = "operations"
HELP_TOPICS = (*(title.lower() for title, _ in GROUPS[1:]), _OPERATIONS)
_FAMOUS = ("allreduce", "alltoall", "p2p")


class Formatter(argparse.HelpFormatter):
    """argparse's layout, in which names such as neighbor-allgather stay whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


def examples(command: str, operations: Iterable[str]) -> list[tuple[str, str]]:
    """Return the examples of a command, without the program's name: (arguments, what they do)."""
    own = _EXAMPLES.get(command, _OF_OPERATIONS if command in operations else ())
    return [(typed.format(command), what) for typed, what in own]


def is_expert(command: str, action: argparse.Action) -> bool:
    """Return whether only --help-all shows an option of a command."""
    if action.dest in _COMMON_IN.get(command, ()):
        return False
    return bool(action.option_strings) and (action.dest in _EXPERT or action.dest in _EXPERT_IN.get(command, ()))


def command_page(parser: argparse.ArgumentParser, operations: Iterable[str], everything: bool) -> str:
    """Return the help page of a command: usage, examples, and the common or all options."""
    command = parser.prog.partition(" ")[2]
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    hidden = [] if everything else [action for action in shown if is_expert(command, action)]
    head, body = parser._get_formatter(), parser._get_formatter()
    head.add_usage(_usage(parser), [], [])
    head.add_text(parser.description)
    for group in parser._action_groups:
        body.start_section(group.title)
        body.add_text(group.description)
        body.add_arguments(action for action in group._group_actions if action not in hidden)
        body.end_section()
    body.add_text(parser.epilog)
    parts = [head.format_help(), _example_lines(examples(command, operations), head._width), body.format_help()]
    only_of_all_commands = all(action.dest == "no_config" for action in hidden)
    more = "" if only_of_all_commands else f"{plural(len(hidden), 'more option')}: {parser.prog} --help-all\n"
    return "\n".join(part for part in (*parts, more) if part)


def _usage(parser: argparse.ArgumentParser) -> str:
    if parser.usage:
        return parser.usage
    return f"{parser.prog} [OPTIONS] {positional_words(parser)}".rstrip()


def positional_words(parser: argparse.ArgumentParser) -> str:
    """Return the arguments of a command that are not options, as its usage has them: "RUN [RUN ...]"."""
    formatter = parser._get_formatter()
    positional = (action for action in parser._actions if not action.option_strings and action.help != argparse.SUPPRESS)
    return " ".join(formatter._format_args(one, str(one.metavar or one.dest)) for one in positional)


def _example_lines(found: list[tuple[str, str]], width: int) -> str:
    """Return the examples, with what they do beside them, or above them where that is too wide."""
    longest = max((len(typed) for typed, _ in found), default=0)
    beside = [f"  collbench {typed:<{longest}}  # {what}" for typed, what in found]
    above = [line for typed, what in found for line in (f"  # {what}", f"  collbench {typed}")]
    lines = ["examples:", *(beside if max(map(len, beside), default=0) <= width else above)]
    return "".join(f"{line}\n" for line in lines) if found else ""


def program_page(parser: argparse.ArgumentParser, operations: Iterable[str], everything: bool) -> str:
    """Return the page of `collbench --help`: the first group of commands, and the names of the others; `everything`: a line for each."""
    formatter = parser._get_formatter()
    formatter.add_usage(f"{parser.prog} COMMAND [OPTIONS]", [], [])
    formatter.add_text(parser.description)
    groups = _grouped(parser, frozenset(operations), everything)
    for title in groups if everything else (GROUPS[0][0],):
        _add_section(formatter, title, groups[title])
    if not everything:
        others = [title for title, _ in GROUPS[1:]]
        lines = [_line(title.lower(), ", ".join(action.dest for action in groups[title])) for title in others]
        _add_section(formatter, "Groups of commands", lines)
    _add_section(formatter, "Options", [action for action in parser._actions if action.option_strings])
    formatter.add_text(f"`{parser.prog} help NAME` shows the examples and options of a command, or the commands of a group.")
    formatter.add_text(parser.epilog)
    return formatter.format_help()


def topic_page(parser: argparse.ArgumentParser, operations: Iterable[str], topic: str) -> str:
    """Return the page of `collbench help TOPIC`, one of HELP_TOPICS: a line for each command of the group, or for each operation."""
    formatter = parser._get_formatter()
    if topic == _OPERATIONS:
        lines = _command_lines(parser)
        _add_section(formatter, topic.capitalize(), [lines[name] for name in sorted(operations) if name in lines])
    else:
        _add_section(formatter, topic.capitalize(), _grouped(parser, frozenset(operations), False)[topic.capitalize()])
    formatter.add_text(f"`{parser.prog} help COMMAND` shows the examples and options of a command.")
    return formatter.format_help()


def _add_section(formatter: argparse.HelpFormatter, title: str, lines: Iterable[argparse.Action]) -> None:
    formatter.start_section(title)
    formatter.add_arguments(lines)
    formatter.end_section()


def _line(name: str, text: str) -> argparse.Action:
    return argparse.Action([], name, metavar=name, help=text.replace("%", "%%"))


def _command_lines(parser: argparse.ArgumentParser) -> Mapping[str, argparse.Action]:
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {action.dest: action for action in commands._get_subactions()}


def _grouped(parser: argparse.ArgumentParser, operations: frozenset[str], everything: bool) -> dict[str, list[argparse.Action]]:
    """Return the lines of the commands by group; `everything`: with the names of all operations."""
    lines = _command_lines(parser)
    names = sorted(operations & set(lines))
    shown = ", ".join(names) if everything else f"{', '.join(_FAMOUS)}, …: `{parser.prog} help {_OPERATIONS}`"
    others = {name: line for name, line in lines.items() if name not in operations}
    lines_of = {**others, "OPERATION": _line("OPERATION", shown)}
    placed = {name for _, group in GROUPS for name in group}
    groups = {title: [lines_of[name] for name in group if name in lines_of] for title, group in GROUPS}
    groups[GROUPS[-1][0]] += [line for name, line in others.items() if name not in placed]
    return groups
