"""The help pages: examples first, then the common options; --help-all adds the expert options."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import wrap

import msgspec

from collbench.plugin import plugins
from collbench.units import plural

# Besides `Option.rare`: options of other commands that few users need, and those that are rare or not in certain commands, by the name of
# their value. Plug-ins list such ones in their parser.
_EXPERT = frozenset({"commit", "expect_template", "no_config"})
_COMMON_IN: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("alltoallv", "allgatherv"), frozenset({"skew", "traffic"})),
    **dict.fromkeys(("gatherv", "scatterv", "reducescatterv"), frozenset({"traffic"})),  # a page has at most 20 lines of options
    "peak": frozenset({"oversubscription"}),
    "report": frozenset({"trace"}),
}
_EXPERT_IN: Mapping[str, frozenset[str]] = {
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
    "doctor": (
        ("doctor", "check this node"),
        ("doctor --launch", "why does the launcher not start my ranks?"),
        ("doctor --log nccl.log", "explain a log of NCCL"),
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
    "compare": (
        ("compare runs/before runs/after", "case by case"),
        ("compare runs/before runs/after --format markdown", "for a pull request"),
        ("compare runs/mpi runs/gloo runs/nccl", "which is the fastest at each size"),
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
    "plugins": (
        ("plugins", "what comes beside the core"),
        ("plugins --format jsonl", "one JSON object per line"),
        ("backends", "the libraries that measure"),
    ),
}  # fmt: skip

# Examples of the core that begin so need a plug-in.
_OF_PLUGINS: Mapping[str, str] = {
    "probe --measure": "channels",
    "gate --self-test": "selftest",
    "doctor --log": "joblogs",
    "report runs --serve": "serve",
    "compare runs/mpi runs/gloo runs/nccl": "alternatives",
}

# The commands of the core by group; the parsers of plug-ins' commands name their place. `collbench --help` has a line for each command of
# the first group, and one for each other group, whose name `collbench help` accepts. Operations are on one line.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Commands": ("check", "OPERATION", "run", "doctor", "report", "compare", "gate", "peak", "explain", "backends"),
    "Training": (),
    "More": ("probe", "baseline", "history", "runs", "plugins"),
}
_OPERATIONS = "operations"
_FAMOUS = ("allreduce", "alltoall", "p2p")


class Formatter(argparse.HelpFormatter):
    """argparse's layout, in which names such as neighbor-allgather stay whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


class HelpEntry(msgspec.Struct):
    """What the pages of help have of a command that a plug-in brings.

    group     the group of commands
    follows   the command of the group that it follows; "": it is the first one; None: it is the last one, as without the one that it names
    examples  (arguments, what they do): three
    expert    the options of this command that only --help-all shows, by the names of their values
    common    those that --help shows, though of other commands only --help-all shows them
    """

    group: str = "More"
    follows: str | None = None
    examples: Sequence[tuple[str, str]] = ()
    expert: str = ""
    common: str = ""


class HelpParser(argparse.ArgumentParser):
    """A parser with the entry of its command in the pages of help."""

    entry: HelpEntry


def grouped_commands(parsers: Mapping[str, HelpParser], operations: Collection[str]) -> dict[str, list[str]]:
    """Return the commands by the title of their group, "OPERATION" for those of the operations. Groups without commands are left out."""
    groups = {title: [name for name in names if name in parsers or name == "OPERATION"] for title, names in GROUPS.items()}
    placed = {name for names in groups.values() for name in names}
    for name, parser in parsers.items():
        if name in placed or name in operations:
            continue
        group = groups[parser.entry.group]
        follows = parser.entry.follows
        place = 0 if follows == "" else len(group)
        if follows in group:
            place = group.index(follows) + 1
        group.insert(place, name)
    return {title: names for title, names in groups.items() if names}


def help_topics(parsers: Mapping[str, HelpParser], operations: Collection[str]) -> list[str]:
    """Return what `collbench help` accepts besides commands: the groups but for the first one, and the operations."""
    return [*(title.lower() for title in list(grouped_commands(parsers, operations))[1:]), _OPERATIONS]


def _command_of(parser: argparse.ArgumentParser) -> str:
    return parser.prog.partition(" ")[2]


def examples(parser: HelpParser, operations: Collection[str]) -> list[tuple[str, str]]:
    """Return the examples of a command, without the program's name: (arguments, what they do). Those of absent plug-ins are left out."""
    from collbench.cli.main import is_command

    command = _command_of(parser)
    all_examples = parser.entry.examples or _EXAMPLES.get(command, _OF_OPERATIONS if command in operations else ())
    absent = tuple(start for start, plugin in _OF_PLUGINS.items() if plugin not in plugins())
    shown = [(typed.format(command), purpose) for typed, purpose in all_examples if not typed.startswith(absent)]
    return [(typed, purpose) for typed, purpose in shown if is_command(typed.split()[0])]


def is_expert(parser: HelpParser, action: argparse.Action) -> bool:
    """Return whether only --help-all shows an option of a command."""
    from collbench.cli.options import OPTIONS

    command = _command_of(parser)
    if action.dest in parser.entry.common.split() or action.dest in _COMMON_IN.get(command, ()):
        return False
    of_command = _EXPERT.union(_EXPERT_IN.get(command, ()), parser.entry.expert.split())
    is_rare = action.dest in OPTIONS and OPTIONS[action.dest].rare
    return bool(action.option_strings) and (is_rare or action.dest in of_command)


def command_page(parser: HelpParser, operations: Collection[str], everything: bool) -> str:
    """Return the help page of a command: usage, examples, and the common or all options."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    hidden = [] if everything else [action for action in shown if is_expert(parser, action)]
    head = parser._get_formatter()
    body = parser._get_formatter()
    head.add_usage(_usage(parser), [], [])
    head.add_text(parser.description)
    for group in parser._action_groups:
        body.start_section(group.title)
        body.add_text(group.description)
        body.add_arguments(action for action in group._group_actions if action not in hidden)
        body.end_section()
    body.add_text(parser.epilog)
    parts = [head.format_help(), _example_lines(examples(parser, operations), head._width), body.format_help()]
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
    return " ".join(formatter._format_args(action, str(action.metavar or action.dest)) for action in positional)


def _example_lines(examples: list[tuple[str, str]], width: int) -> str:
    """Return the examples, each with its purpose on the same line, or above it where that is too wide."""
    if not examples:
        return ""
    longest = max(len(typed) for typed, _ in examples)
    same_line = [f"  collbench {typed:<{longest}}  # {purpose}" for typed, purpose in examples]
    above = [line for typed, purpose in examples for line in (f"  # {purpose}", f"  collbench {typed}")]
    lines = same_line if max(map(len, same_line)) <= width else above
    return "".join(f"{line}\n" for line in ("examples:", *lines))


def program_page(parser: HelpParser, operations: Collection[str], everything: bool) -> str:
    """Return the page of `collbench --help`: the first group of commands, and the names of the others; `everything`: a line for each."""
    formatter = parser._get_formatter()
    formatter.add_usage(f"{parser.prog} COMMAND [OPTIONS]", [], [])
    formatter.add_text(parser.description)
    groups = _grouped(parser, operations, everything)
    first, *others = groups
    for title in groups if everything else (first,):
        _add_section(formatter, title, groups[title])
    if not everything:
        lines = [_line(title.lower(), ", ".join(action.dest for action in groups[title])) for title in others]
        _add_section(formatter, "Groups of commands", lines)
    _add_section(formatter, "Options", [action for action in parser._actions if action.option_strings])
    formatter.add_text(f"`{parser.prog} help NAME` shows the examples and options of a command, or the commands of a group.")
    formatter.add_text(parser.epilog)
    return formatter.format_help()


def topic_page(parser: HelpParser, operations: Collection[str], topic: str) -> str:
    """Return the page of `collbench help TOPIC`, one of `help_topics`: a line for each command of the group, or for each operation."""
    formatter = parser._get_formatter()
    if topic == _OPERATIONS:
        lines = _command_lines(parser)
        _add_section(formatter, topic.capitalize(), [lines[name] for name in sorted(operations) if name in lines])
    else:
        _add_section(formatter, topic.capitalize(), _grouped(parser, operations, False)[topic.capitalize()])
    formatter.add_text(f"`{parser.prog} help COMMAND` shows the examples and options of a command.")
    return formatter.format_help()


def _add_section(formatter: argparse.HelpFormatter, title: str, lines: Iterable[argparse.Action]) -> None:
    formatter.start_section(title)
    formatter.add_arguments(lines)
    formatter.end_section()


def _line(name: str, text: str) -> argparse.Action:
    return argparse.Action([], name, metavar=name, help=text.replace("%", "%%"))


def _commands_of(parser: HelpParser) -> argparse._SubParsersAction[HelpParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _command_lines(parser: HelpParser) -> Mapping[str, argparse.Action]:
    return {action.dest: action for action in _commands_of(parser)._get_subactions()}


def _grouped(parser: HelpParser, operations: Collection[str], everything: bool) -> dict[str, list[argparse.Action]]:
    """Return the lines of the commands by group; `everything`: with the names of all operations."""
    lines = _command_lines(parser)
    shown = f"{', '.join(_FAMOUS)}, …: `{parser.prog} help {_OPERATIONS}`"
    if everything:
        shown = ", ".join(sorted(lines.keys() & operations))
    lines_of = {**lines, "OPERATION": _line("OPERATION", shown)}
    groups = grouped_commands(_commands_of(parser).choices, operations)
    return {title: [lines_of[name] for name in names if name in lines_of] for title, names in groups.items()}
