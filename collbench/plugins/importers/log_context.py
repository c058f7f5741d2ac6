"""Read the lines of a log around its tables: the launcher's command, its ranks and hosts, library versions and settings.

A log may contain several starts. Each launcher command begins another one; without commands, all lines are of one start. A value that
a start does not contain is unknown. Numbers that contradict each other within a start are unknown, too.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from collbench.machine.readers.nccl_facts import LogSetting, RankCount, Release, TunedRate, facts_in
from collbench.machine.readers.nccl_lines import split_line
from collbench.plugins.importers.importer import UserInput, split_prefix
from collbench.plugins.importers.rows import JobExtent, ranks_and_nodes, short
from collbench.results.environment import recorded_environment

_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "aprun", "jsrun"}
_LAUNCHER_WORD = re.compile(r"(?:^|[\s/])(?:mpirun|mpiexec(?:\.hydra)?|orterun|prterun|srun|aprun|jsrun)\s")
_PROGRAM = re.compile(r"(?:[a-z0-9_]{3,40}_perf\w{0,20}|osu_\w{2,40}|IMB-\w{2,12}|ucx_perftest|mpiGraph|network_(?:load_)?test)$")
# In other lines only names of known programs count, since libfabric, for example, has a provider ofi_hook_perf.
_NAMES = r"(?:all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoallv?|gather|scatter|sendrecv|hypercube)_perf\w{0,20}"
_NAMED_PROGRAM = re.compile(rf"(?:^|[\s/\"'=`])({_NAMES})(?=[\s\"'`;|&]|$)")
_ASSIGNED = re.compile(r"(?:\+\s*)?(?:export\s+)?([A-Z][A-Z0-9_]{2,60})=(\"[^\"]{0,400}\"|'[^']{0,400}'|\S{0,400})\s*;?\s*$")
_TASKS = re.compile(r"\bSLURM_(?:NTASKS|NPROCS)=[\"']?(\d{1,7})\b")
_STARTUP = re.compile(r"MPI startup\(\):\s+(\d{1,7})\s+\d{1,10}\s+(\S{1,256})\s+\S")
_SHELL = re.compile(r"(?:^|\s)(?:\[?[\w.-]+@[\w.-]+[^$#>]{0,200}[$#]|[\w.~:/()-]{0,80}[$>+#%])\s+(?=\S)")
_LOCAL = re.compile(r"(?:^|[\s/\"'])[a-z0-9_]{3,40}_perf\w{0,20}\s(?:.{0,400}\s)?-\w")
# These names begin a command after any words: "taskset -c 1 ucx_perftest node03 -t tag_bw", "kubectl exec pod -- all_reduce_perf -b 8".
_WRAPPED = re.compile(rf"{_NAMES}|ucx_perftest")
_PRODUCT = re.compile(r"\$\(\(\s{0,9}(\d{1,15}(?:\s{0,9}\*\s{0,9}\d{1,15}){0,8})\s{0,9}\)\)")  # $((4 * 1024))
_LONGEST = 20_000  # characters of a command with its continued lines
_MOST_LINES = 60
_MOST_WORDS = 2_000
_MOST_PROCESSES = 10**7
_MOST_TABLE_LINES = 1_000


def last_option(arguments: Sequence[str], short_name: str, long_name: str) -> str | None:
    """Return the last value of an option: "-z 1", "-z1", "--blocking 1" or "--blocking=1"; None without one."""
    value: str | None = None
    for word, after in zip(arguments, (*arguments[1:], ""), strict=False):
        if word in (short_name, long_name):
            value = after
        elif word.startswith(f"{long_name}="):
            value = word.partition("=")[2]
        elif word.startswith(short_name) and word[len(short_name) :].isdecimal():
            value = word[len(short_name) :]
    return value


class LogContext(msgspec.Struct, frozen=True):
    """The known values of one start.

    program      the benchmark's name on the command line; None: none, or several
    processes    how many the launcher started
    arguments    the program's arguments on its command line
    ranks        of the communicator, from NCCL's log
    hosts        names by rank, as Intel MPI lists them
    library      ("nccl" or "rccl", version), as the library prints it
    environment  the variables that steer libraries, if the log contains them
    tuning       NCCL's table of latencies and bandwidths (subsystem TUNING); () without one
    """

    program: str | None = None
    processes: int | None = None
    arguments: tuple[str, ...] = ()
    ranks: int | None = None
    hosts: tuple[str, ...] = ()
    library: tuple[str, str] | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    tuning: tuple[TunedRate, ...] = ()

    def option(self, short_name: str, long_name: str) -> int | None:
        """Return the integer that the program's command line has for "-g 8", "-g8", "--ngpus 8" or "--ngpus=8"; None without one."""
        value = last_option(self.arguments, short_name, long_name)
        return int(value) if value and value.isdecimal() and len(value) < 16 else None


class Contexts:
    """The contexts of a log, found by line. The lines are read when the first context is asked for."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._starts: list[tuple[int, LogContext]] = []

    def at(self, line: int) -> LogContext:
        """Return the start that contains the line (the first is 1), with the values of all its lines."""
        if not self._starts:
            self._starts = list(_starts(self._lines))
        return self._starts[max(bisect_right(self._starts, line, key=itemgetter(0)) - 1, 0)][1]


class _Command(NamedTuple):
    program: str | None
    processes: int | None
    arguments: tuple[str, ...]
    environment: dict[str, str]


class _Start(msgspec.Struct):
    """One start while its lines are read. Each number is stored once."""

    line: int
    command: _Command | None = None
    tasks: set[int] = msgspec.field(default_factory=set)
    ranks: set[int] = msgspec.field(default_factory=set)
    hosts: dict[int, str] = msgspec.field(default_factory=dict)
    libraries: dict[tuple[str, str], None] = msgspec.field(default_factory=dict)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    exported: dict[str, str] = msgspec.field(default_factory=dict)  # by the shell; also for the following starts
    table_lines: list[str] = msgspec.field(default_factory=list)

    def context(self) -> LogContext:
        ranks = sorted(self.hosts)
        hosts = tuple(self.hosts[rank] for rank in ranks) if ranks == list(range(len(ranks))) else ()
        command = self.command
        counts = set(self.tasks) if command is None or command.processes is None else {command.processes}
        if hosts:
            counts.add(len(hosts))
        processes = counts.pop() if len(counts) == 1 else None
        environment = {**self.environment, **(command.environment if command else {})}
        return LogContext(
            command.program if command else None, processes, command.arguments if command else (),
            next(iter(self.ranks)) if len(self.ranks) == 1 else None, hosts,
            next(iter(self.libraries)) if len(self.libraries) == 1 else None, recorded_environment(environment), self._tuning(),
        )  # fmt: skip

    def _tuning(self) -> tuple[TunedRate, ...]:
        """Return NCCL's table; RCCL selects by other corrections of its table, so that it is not read."""
        if not self.table_lines or any(name != "nccl" for name, _ in self.libraries):
            return ()
        from collbench.machine.readers.nccl_log import read  # few logs have the table

        return read("\n".join(self.table_lines), "NCCL's log").tuning


def _starts(lines: Sequence[str]) -> Iterator[tuple[int, LogContext]]:
    start = _Start(0)
    resume = 0
    for number, line in enumerate(lines, 1):
        if number < resume or len(line) > _LONGEST:
            continue
        command, size = _command(lines, number)
        if command is None and "_perf" in line and "Collective test" not in line and "NCCL " not in line:
            programs = set(_NAMED_PROGRAM.findall(line))  # "Running all_gather_perf on 2 nodes" may begin another start
            if programs and not (start.command is not None and programs == {start.command.program}):
                command = _Command(programs.pop() if len(programs) == 1 else None, None, (), {})
        if command is not None:
            resume = number + size
            if start.command is not None:  # settings before the first command belong to it
                yield start.line, start.context()
                start = _Start(number, environment=dict(start.exported), exported=dict(start.exported))
            start.command = command
        else:
            _learn(start, line)
    yield start.line, start.context()


def _learn(start: _Start, line: str) -> None:
    """Read one line. Cheap tests come first: a log has 100,000 lines without a value."""
    logged = split_line(line.encode("utf-8", "replace")) if "CCL " in line else None
    if logged is not None:
        if "|" in line and len(start.table_lines) < _MOST_TABLE_LINES:
            start.table_lines.append(line)
        for fact in facts_in(logged.text):
            match fact:
                case Release():
                    start.libraries[fact.library.value.lower(), fact.text] = None
                case LogSetting():
                    start.environment[fact.name] = short(fact.value)
                case RankCount(truncated=False):
                    start.ranks.add(fact.ranks)
        return
    host = _STARTUP.search(line) if "MPI startup():" in line else None
    if host is not None:
        start.hosts[int(host[1])] = short(host[2])
    elif "=" in line:
        assignment = _ASSIGNED.match(split_prefix(line).text.strip())
        if assignment is not None:
            name, value = assignment.groups()
            start.environment[name] = start.exported[name] = short(value.strip("\"'"))
        if "SLURM_N" in line:
            start.tasks |= {int(count) for count in _TASKS.findall(line)}


def _command(lines: Sequence[str], number: int) -> tuple[_Command | None, int]:
    """Return (the command that begins in this line, the number of its lines); None if the line is not a command."""
    line = lines[number - 1]
    launched = _LAUNCHER_WORD.search(line) is not None
    if not launched and not ("_perf" in line and _LOCAL.search(line)):
        return None, 1
    text, size = _continued(lines, number)
    if not launched:
        return _local(text), size
    launcher = _LAUNCHER_WORD.search(text)
    words = _words(text[launcher.start() :].strip()) if launcher else []
    is_command = any(word.startswith("-") for word in words) or _program_index(words) is not None
    if not launcher or not is_command or len(words) < 2 or words[0].rsplit("/", 1)[-1] not in _LAUNCHERS:
        return None, 1
    return _parsed(words, dict(_assignments(_words(text[: launcher.start()])))), size


def _local(text: str) -> _Command | None:
    """Return the command of a program that is started without a launcher, with one process; None for other text."""
    words = _words(_SHELL.sub("", text, count=1).strip())
    index = _program_index(words)
    if index is None:
        return None
    name = words[index].rsplit("/", 1)[-1]
    before = words[:index]
    if not _WRAPPED.fullmatch(name) and not all("=" in word for word in before):
        return None
    return _Command(name, 1, tuple(next(_parts(words[index:]))), dict(_assignments(before)))


def _continued(lines: Sequence[str], number: int) -> tuple[str, int]:
    """Return (the line with its continuation lines, their number)."""
    parts: list[str] = []
    for line in lines[number - 1 : number - 1 + _MOST_LINES]:
        text = split_prefix(line).text.rstrip()
        parts.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            break
    return " ".join(parts)[:_LONGEST], len(parts)


def _words(text: str) -> list[str]:
    """Return the words of a command; a quoted command within it as its words: bash -c "ucx_perftest -s 8"."""
    with_products = _PRODUCT.sub(lambda match: str(prod(map(int, match[1].split("*")))), text)
    words: list[str] = []
    for word in _split(with_products):
        words += _split(word) if " " in word and _LOCAL.search(word) else [word]
    return words[:_MOST_WORDS]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _assignments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, sign, value = word.partition("=")
        if sign and re.fullmatch(r"[A-Z][A-Z0-9_]{2,60}", name):
            yield name, short(value)


def _program_index(words: Sequence[str]) -> int | None:
    return next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word.rsplit("/", 1)[-1])), None)


def _parsed(words: Sequence[str], environment: dict[str, str]) -> _Command:
    """Return the command: "mpirun -np 1 a : -np 3 a" starts four processes."""
    program: str | None = None
    arguments: tuple[str, ...] = ()
    several = False
    counts: list[int | None] = []
    for part in _parts(words):
        index = _program_index(part)
        options = part[:index]
        environment |= _steering(options)
        counts.append(_processes(options, words[0]))
        if index is not None:
            name = part[index].rsplit("/", 1)[-1]
            several = several or program not in (None, name)
            program = name
            arguments = tuple(part[index + 1 :])
    processes = sum(count or 0 for count in counts) if program and None not in counts else 0
    valid_processes = processes if 0 < processes <= _MOST_PROCESSES else None
    return _Command(None if several else program, valid_processes, arguments, environment)


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words[1:]:
        if word == ":":
            yield part
            part = []
        elif word in ("|", "|&", ";", "&&", ">", "2>&1", "&>"):
            break
        else:
            part.append(word)
    yield part


def _processes(options: Sequence[str], launcher: str) -> int | None:
    """Return the number in "-np 8", "-np=8", "-n8" or "--ntasks=8"; the last one of a name counts."""
    counts: dict[str, int] = {}
    for word, after in zip(options, [*options[1:], ""], strict=False):
        name, _, value = word.partition("=")
        joined = re.fullmatch(r"(-[nNc])(\d{1,7})", word)
        if joined:
            name, value = joined.groups()
        text = value or after
        if name.startswith("-") and text.isdecimal() and len(text) < 8:
            counts[name] = int(text)
    is_slurm = launcher.rsplit("/", 1)[-1] == "srun"
    for name in ("-np", "--np", "-n", "--ntasks", "-c"):
        if name in counts and not (is_slurm and name == "-c"):
            return counts[name]
    nodes = counts.get("-N", counts.get("--nodes"))
    tasks_per_node = counts.get("--ntasks-per-node")
    return nodes * tasks_per_node if is_slurm and nodes and tasks_per_node else None


def _steering(options: Sequence[str]) -> dict[str, str]:
    """Return the variables of mpirun -x A=1, mpiexec -genv A 1, -env A 1, srun --export=ALL,A=1, and "env A=1" before the program."""
    variables = dict(_assignments(options))
    for i, word in enumerate(options):
        if word in ("-genv", "-env") and i + 2 < len(options) and "=" not in options[i + 1]:
            variables[options[i + 1]] = short(options[i + 2])
        elif word.startswith("--export=") or (word == "--export" and i + 1 < len(options)):
            exported = word.partition("=")[2] or options[i + 1]
            variables |= dict(_assignments(exported.split(",")))
    return variables


def with_hosts(context: LogContext, ranks: int) -> tuple[str, ...]:
    """Return the hosts by rank, if the log lists as many as there are ranks."""
    return context.hosts if len(context.hosts) == ranks else ()


def extent_of(context: LogContext, user_input: UserInput, printed: int | None, where: str) -> JobExtent:
    """Return ranks and nodes of a tool with one rank per process: the printed ranks, else the user's, else the launcher's processes.

    Raises UsageError if none is known.
    """
    ranks = context.processes if printed is None and user_input.ranks is None else printed
    hosts = with_hosts(context, (ranks if ranks is not None else user_input.ranks) or 0)
    return ranks_and_nodes(user_input, ranks, len(set(hosts)) or None, where)


def start_facts(context: LogContext) -> dict[str, Any]:
    """Return the facts about a start that a run stores."""
    facts: dict[str, Any] = {"environment": context.environment} if context.environment else {}
    if context.tuning:
        facts["nccl_tuning"] = [list(entry) for entry in context.tuning if entry.gb_per_s]
    return facts
