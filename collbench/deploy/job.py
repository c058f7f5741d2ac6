"""A job, whatever starts it: what follows `collbench`, and how many nodes, ranks and GPUs it wants; the same for every kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from collbench.deploy.files import printable
from collbench.errors import UsageError
from collbench.untrusted import parse_toml, read_file

Value = str | int | tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """Something that may be said of a job: an option of `collbench emit`, and a key of a site file.

    name        as in a site file; the option is --name
    metavar     what --help calls its value
    summary     one line of --help
    parse       from what was typed to the value; raises UsageError that says what is wrong with it, without naming the setting
    default     None: nothing is said, and the file says nothing of it either
    many        it may be given several times: its value is a tuple of all, of a site's defaults first, then its partition's, then typed
    """

    name: str
    metavar: str
    summary: str
    parse: Callable[[str], str | int]
    default: Value | None = None
    many: bool = False


@dataclass(frozen=True)
class Job:
    """What is to be started.

    command     follows `collbench`
    settings    all of its kind by name; None: it was not said, and has no default
    said        the names of those that were said
    """

    command: tuple[str, ...]
    settings: Mapping[str, Value | None]
    said: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        """The value of a setting; None where nothing was said. Raises KeyError for one that the kind does not have: a misspelt one, too."""
        return self.settings[name]

    @property
    def name(self) -> str:
        """A word: what the launcher calls the job."""
        return str(self["name"])

    @property
    def program(self) -> str:
        """collbench, as the nodes find it."""
        return str(self["program"])

    @property
    def runs(self) -> str:
        """The folder in which run folders are left."""
        return str(self["runs"])

    @property
    def says_out(self) -> bool:
        """Whether the command says itself where its run folder is."""
        return self.out is not None

    @property
    def out(self) -> str | None:
        """The run folder that the command names; None where it leaves that to collbench, or to the file."""
        return self.told("--out")

    @property
    def wants_out(self) -> bool:
        """Whether the command writes a run folder and leaves it to the file to say where: probe and doctor write none, --resume goes on."""
        return self.command[0] not in ("probe", "doctor") and not self.says_out and self.told("--resume") is None

    @property
    def resumes(self) -> bool:
        """Whether the command can go on with its run folder when the scheduler begins the job again; some measure all in one launch."""
        whole = ("probe", "doctor", "pairs", "hunt", "workload")
        return self.command[0] not in whole and self.told("--resume") is None and "--resume-if-exists" not in self.command

    @property
    def nodes(self) -> int:
        """How many, from 1 on."""
        return int(self["nodes"])

    @property
    def gpus(self) -> int:
        """Of each node, from 0 on."""
        return int(self["gpus-per-node"])

    @property
    def ranks(self) -> int:
        """Of each node: as was said, else one for each GPU, else 1."""
        return int(self["ranks-per-node"] or self.gpus or 1)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every rank is to have, by name."""
        return dict(pair.split("=", 1) for pair in self["env"] or ())

    def told(self, option: str) -> str | None:
        """The value of a long option of the command, the last one where there are several."""
        found = None
        for word, following in pairwise((*self.command, "")):
            if word == option or word.startswith(f"{option}="):
                found = following if word == option else word.partition("=")[2]
        return found


@dataclass(frozen=True)
class Kind:
    """A kind of launcher: which settings it has a use for, how the file is written, and what takes it.

    suffix      what the file's name ends with: ".sbatch"
    render      the file's text, which ends with a line end. Raises UsageError for settings that contradict each other
    submit      the command that reads the file from stdin, as ("sbatch",); empty: the user runs the file
    start       the command line that starts a file which is called FILE
    """

    name: str
    summary: str
    suffix: str
    settings: tuple[Setting, ...]
    render: Callable[[Job], str]
    start: str
    submit: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What whoever says --submit is told where nothing can take the file."""
        return f"write the file with --write, then: {self.start}"


def job_of(kind: Kind, command: tuple[str, ...], said: Mapping[str, Value]) -> Job:
    """A job of this kind. Raises UsageError for a setting that the kind has no use for, naming those kinds' option."""
    known = {each.name: each for each in kind.settings}
    for name in said:
        if name not in known:
            raise UsageError(f"emit {kind.name} has no use for --{name}: leave it out (see `collbench emit --help`)")
    defaults = {name: each.default for name, each in known.items()}
    return Job(command, {**defaults, **said}, frozenset(said))


# Where an emitted file goes: onto the disk, or to the command that takes it.

_TIMEOUT_S = 60.0


def write(file: Path, text: str) -> None:
    """A new file that may be run. Raises UsageError where there is one already, or it cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    except FileExistsError as error:
        raise UsageError(f"--write {file} is there already: choose another name, so that nothing is lost") from error
    except OSError as error:
        raise UsageError(f"--write {file} cannot be written ({error.strerror}): choose another folder") from error


def submit(kind: Kind, text: str, env: Mapping[str, str]) -> str:
    """What the launcher's own command says when it reads the file from stdin; its warnings go to stderr.

    Raises UsageError where it is missing, or refuses the file.
    """
    if not kind.submit:
        raise UsageError(f"emit {kind.name} has nothing to submit to: {kind.remedy}")
    program = shutil.which(kind.submit[0], path=env.get("PATH"))
    if not program:
        raise UsageError(f"--submit needs {kind.submit[0]}, which is not found: {kind.remedy}")
    try:
        line = [program, *kind.submit[1:]]
        done = subprocess.run(line, input=text.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False, env=dict(env))
    except OSError as error:
        raise UsageError(f"{program} cannot be started ({error.strerror}): {kind.remedy}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{kind.submit[0]} did not answer within {_TIMEOUT_S:g} s: see whether it has the job nevertheless") from error
    out, err = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise UsageError(f"{kind.submit[0]} did not take the job: {' '.join((err or out).split()) or f'exit code {done.returncode}'}")
    if err:
        print(err, file=sys.stderr)
    return out


# What may be said of a job of any kind; each kind adds what it alone knows.

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# A registry's reference (host:port/path/name:tag@digest), or a path of a file (.sif, .sqsh)
_IMAGE = re.compile(r"[A-Za-z0-9./][A-Za-z0-9._/:@+#-]*")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/=-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_DIGITS = 9
MOST_NODES = 100_000


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        stripped = text.strip()
        if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= _DIGITS and least <= int(stripped) <= most):
            raise UsageError(f"'{text}' is not a whole number from {least} to {most}")
        return int(stripped)

    return parse


def word(text: str) -> str:
    """A name that no launcher can mistake: letters, digits and - _ . + after a letter or digit. Raises UsageError."""
    return _matching(_WORD, text, "a name: letters, digits and -_.+ alone, a letter or digit first")


def image(text: str) -> str:
    """A container image: a registry's reference, or a file's path. Raises UsageError, for blanks and quotes among others."""
    return _matching(_IMAGE, text, "an image: write registry/name:tag, or the path of a .sif or .sqsh file, without blanks and quotes")


def module(text: str) -> str:
    """An environment module, such as openmpi/5.0. Raises UsageError."""
    return _matching(_MODULE, text, "a module: write name/version, letters, digits and -_.+/= alone, a letter or digit first")


def variable(text: str) -> str:
    """NAME=VALUE. Raises UsageError."""
    return printable(_matching(_VARIABLE, text, "NAME=VALUE, with a name of letters, digits and _"))


def path(text: str) -> str:
    """A path, of any printable characters. Raises UsageError for none, for one that would be read as an option, and for ~ and $HOME."""
    if not text or text.startswith("-"):
        raise UsageError(f"'{text}' is no path: write ./{text} for a file of that name" if text else "a path is missing")
    if text.startswith(("~", "$")):
        raise UsageError(f"'{text}' would stay as it is, because nothing expands it there: write the whole path")
    return printable(text)


def _matching(pattern: re.Pattern[str], text: str, wanted: str) -> str:
    if not pattern.fullmatch(text):
        raise UsageError(f"{text!r} is not {wanted}")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser of one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise UsageError(f"'{text}' is not one of {', '.join(choices)}")
        return text

    return parse


NODES = Setting("nodes", "N", "nodes", whole(1, MOST_NODES), 2)
GPUS = Setting("gpus-per-node", "G", "GPUs of each node", whole(0, 64), 0)
RANKS = Setting("ranks-per-node", "K", "ranks on each node (default: one per GPU, else 1)", whole(1, 1024))
CPUS = Setting("cpus-per-rank", "C", "cores for each rank (default: what the launcher gives)", whole(1, 1024))
MINUTES = Setting("minutes", "M", "time limit", whole(1, 60 * 24 * 30), 30)
NAME = Setting("name", "NAME", "the job's name", word, "collbench")
PROGRAM = Setting("program", "PATH", "collbench, as the nodes find it", path, "collbench")
RUNS = Setting("runs", "FOLDER", "where run folders are left, on a file system that all nodes share", path, "runs")
ENV = Setting("env", "NAME=VALUE", "a variable for every rank; may be given several times", variable, many=True)
MODULES = Setting("module", "NAME", "an environment module that is loaded first; may be given several times", module, many=True)
IMAGE = Setting("image", "IMAGE", "a container that has collbench: registry/name:tag, or a .sif or .sqsh file", image)
PORT = Setting("port", "PORT", "where the ranks meet, on the first node", whole(1024, 65535), 29500)
HOSTS = Setting("hosts", "FILE", "a file with the hosts' names, one in each line", path)

EVERYWHERE = (NODES, GPUS, RANKS, NAME, PROGRAM, RUNS, ENV)


# A site file: what is the same for every job of a cluster, said once, by partition.
#
#     schema = 1
#     [defaults]
#     account = "infra"
#     [partitions.h100]
#     gpus-per-node = 8
#     env = ["NCCL_IB_HCA=mlx5"]
#
# Its keys are the settings' names. `--partition h100` takes what that table says; what is typed wins, then the partition, then defaults.
# Of a setting that may be given several times all are taken, in the other order: of two values of one variable the typed one wins.

_TOP = frozenset({"schema", "defaults", "partitions"})
_LARGEST_BYTES = 1 << 20


def of_site(file: Path, partition: str | None, known: Mapping[str, Setting], *, named: bool = False) -> dict[str, Value]:
    """What the file says of a job on this partition (None: none was named), by setting. `known`: every kind's settings, by name.

    `named`: the partition is nothing but a table's name, so that there has to be one. Raises UsageError for a file that cannot be read,
    an unknown key or partition, and a value that its setting refuses.
    """
    told = _read(file)
    defaults, partitions = told.get("defaults", {}), told.get("partitions", {})
    for where, table in (("defaults", defaults), ("partitions", partitions)):
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {where} has to be a table: write [{where}{'.NAME' if where == 'partitions' else ''}]")
    if partition is not None and (partitions or named) and partition not in partitions:
        others = f"choose from {', '.join(partitions)}, or " if partitions else ""
        raise UsageError(f"{file} has no partition {partition!r}: {others}add [partitions.{partition}]")
    tables = {"defaults": defaults, **{f"partitions.{name}": table for name, table in partitions.items()}}
    parsed = {where: _parsed(f"{file}: [{where}]", table, known) for where, table in tables.items()}
    return together(parsed["defaults"], parsed.get(f"partitions.{partition}", {}))


def together(*said: Mapping[str, Value]) -> dict[str, Value]:
    """What several places say: the last one's word, but all values of what may be given several times, in this order."""
    found: dict[str, Value] = {}
    for place in said:
        for name, value in place.items():
            before = found.get(name)
            found[name] = (*before, *value) if isinstance(before, tuple) and isinstance(value, tuple) else value
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        told = parse_toml(read_file(file, _LARGEST_BYTES).decode())
    except OSError as error:
        raise UsageError(f"--site {file} cannot be read ({error.strerror}): name a TOML file") from error
    except ValueError as error:
        raise UsageError(f"--site {file} is no TOML ({error}): mend it there") from error
    unknown = sorted(set(told) - _TOP)
    if unknown:
        raise UsageError(f"{file}: {unknown[0]!r} is unknown: there are schema, [defaults] and [partitions.NAME]")
    if told.get("schema") != 1:
        raise UsageError(f"{file}: schema = 1 is missing: write it in the first line")
    return told


def _parsed(where: str, table: Any, known: Mapping[str, Setting]) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} has to be a table")
    return {name: _value(where, name, said, known) for name, said in table.items()}


def _value(where: str, name: str, said: Any, known: Mapping[str, Setting]) -> Value:
    if name not in known:
        from collbench.operations.suite import nearest

        raise UsageError(f"{where} key {name!r} is unknown: {nearest(name, known)}")
    setting = known[name]
    each = said if setting.many and isinstance(said, list) else [said]
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in each):
        raise UsageError(f"{where} {name} = {said!r} is neither a text nor a whole number{', nor a list of texts' * setting.many}")
    parsed = tuple(parse_setting(setting, str(one), f"{where} {name}") for one in each)
    return tuple(map(str, parsed)) if setting.many else parsed[0]


def parse_setting(setting: Setting, text: str, where: str) -> str | int:
    """The setting's value. Raises UsageError that begins with `where`."""
    try:
        return setting.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
