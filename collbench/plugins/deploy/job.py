"""A job for any launcher: the command after `collbench`, its settings, and the file that starts it (written, or submitted)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from collbench.errors import UsageError, nearest
from collbench.plugins.deploy.files import printable
from collbench.untrusted import parse_toml, read_file

Value = str | int | tuple[str, ...]


class JobSetting(msgspec.Struct, frozen=True):
    """A setting of a job: an option of `collbench emit`, and a key of a site file.

    name        as in a site file; the option is --name
    metavar     name of its value in --help; summary: one line of --help
    parse       text -> value; raises UsageError with the cause, without the name of the setting
    default     None: not set, and not in the file
    many        it may be repeated; its value is a tuple: the site's defaults first, then its partition's, then the command line's
    """

    name: str
    metavar: str
    summary: str
    parse: Callable[[str], str | int]
    default: Value | None = None
    many: bool = False


class LaunchJob(msgspec.Struct, frozen=True):
    """A job to start.

    command     the words after `collbench`
    settings    all settings of its kind by name; None: not set, and no default
    `explicit`  the names of the settings that the user set
    """

    command: tuple[str, ...]
    settings: Mapping[str, Value | None]
    explicit: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting; None if it is not set. Raises KeyError for one that the kind does not have."""
        return self.settings[name]

    @property
    def out(self) -> str | None:
        """Return the run folder that the command sets; None if collbench or the file sets it."""
        return self.option("--out")

    @property
    def wants_out(self) -> bool:
        """Return whether the file must set the run folder: not for probe and doctor, which write none, nor with --resume."""
        return self.command[0] not in ("probe", "doctor") and self.out is None and self.option("--resume") is None

    @property
    def resumes(self) -> bool:
        """Return whether the command can continue in its run folder when the scheduler restarts the job."""
        return (
            self.command[0] not in ("check", "probe", "doctor")
            and self.option("--resume") is None
            and "--resume-if-exists" not in self.command
        )

    @property
    def nodes(self) -> int:
        """Return the number of nodes, at least 1."""
        return int(self["nodes"])

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of each node, at least 0."""
        return int(self["gpus-per-node"])

    @property
    def ranks(self) -> int:
        """Return the number of ranks on each node: as set, else one per GPU, else 1."""
        return int(self["ranks-per-node"] or self.gpus or 1)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables for all ranks, by name."""
        return dict(pair.split("=", 1) for pair in self["env"] or ())

    def option(self, option: str) -> str | None:
        """Return the value of a long option of the command, the last one where it is repeated; None without it."""
        found = None
        for word, following in pairwise((*self.command, "")):
            if word == option or word.startswith(f"{option}="):
                found = following if word == option else word.partition("=")[2]
        return found


class LauncherKind(msgspec.Struct, frozen=True):
    """A kind of launcher: its settings, and the file that it needs.

    render      a job -> the text of the file. Raises UsageError for settings that contradict each other
    submit      the command that reads the file from stdin: ("sbatch",); (): the user runs the file
    start       the command line that starts a file named FILE
    """

    name: str
    summary: str
    settings: tuple[JobSetting, ...]
    render: Callable[[LaunchJob], str]
    start: str
    submit: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """Return the remedy where --submit is not possible."""
        return f"write the file with --write, then run: {self.start}"


def job_of(kind: LauncherKind, command: tuple[str, ...], explicit: Mapping[str, Value]) -> LaunchJob:
    """Return a job of this kind. Raises UsageError for a setting that the kind does not have."""
    known = {each.name: each for each in kind.settings}
    for name in explicit:
        if name not in known:
            raise UsageError(f"--{name} does not apply to emit {kind.name}: omit it (see `collbench emit --help`)")
    defaults = {name: each.default for name, each in known.items()}
    return LaunchJob(command, {**defaults, **explicit}, frozenset(explicit))


_TIMEOUT_S = 60.0


def write(file: Path, text: str) -> None:
    """Write a new file, executable if it is a script. Raises UsageError if it exists, or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    except FileExistsError as error:
        raise UsageError(f"--write {file}: the file exists: choose another name") from error
    except OSError as error:
        raise UsageError(f"--write {file}: cannot be written ({error.strerror}): choose another folder") from error


def submit(kind: LauncherKind, text: str, env: Mapping[str, str]) -> str:
    """Submit the file through stdin of the launcher's command and return its output; its warnings go to stderr.

    Raises UsageError if the command is missing or fails.
    """
    if not kind.submit:
        raise UsageError(f"--submit is not supported by emit {kind.name}: {kind.remedy}")
    program = shutil.which(kind.submit[0], path=env.get("PATH"))
    if not program:
        raise UsageError(f"--submit: {kind.submit[0]} not found: {kind.remedy}")
    try:
        line = [program, *kind.submit[1:]]
        done = subprocess.run(line, input=text.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False, env=dict(env))
    except OSError as error:
        raise UsageError(f"{program} cannot be started ({error.strerror}): {kind.remedy}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{kind.submit[0]} did not end within {_TIMEOUT_S:g} s: check whether the job was submitted") from error
    out, err = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise UsageError(f"{kind.submit[0]} failed: {' '.join((err or out).split()) or f'exit code {done.returncode}'}")
    if err:
        print(err, file=sys.stderr)
    return out


# The settings of all kinds; each kind adds its own.

_DIGITS = 9
MOST_NODES = 100_000


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        stripped = text.strip()
        if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= _DIGITS and least <= int(stripped) <= most):
            raise UsageError(f"'{text}': not a whole number from {least} to {most}")
        return int(stripped)

    return parse


def matching(pattern: str, what: str) -> Callable[[str], str]:
    """Return a parser of printable text that matches a pattern; `what` completes "'text' is not …" in its error."""
    compiled = re.compile(pattern)

    def parse(text: str) -> str:
        if not compiled.fullmatch(text):
            raise UsageError(f"{text!r} is not {what}")
        return printable(text)

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise UsageError(f"'{text}' is not one of {', '.join(choices)}")
        return text

    return parse


def path(text: str) -> str:
    """Return a path of printable characters. Raises UsageError for an empty one, one that looks like an option, and for ~ and $HOME."""
    if not text or text.startswith("-"):
        raise UsageError(f"'{text}' looks like an option: use ./{text} for a file of that name" if text else "missing path")
    if text.startswith(("~", "$")):
        raise UsageError(f"'{text}' is not expanded there: use the whole path")
    return printable(text)


word = matching(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "a valid name: use letters, digits and -_.+, with a letter or digit first")
_image = matching(  # a registry's reference (host:port/path/name:tag@digest), or a path of a file (.sif, .sqsh)
    r"[A-Za-z0-9./][A-Za-z0-9._/:@+#-]*",
    "a valid image: use registry/name:tag, or the path of a .sif or .sqsh file, without blanks and quotes",
)
_module = matching(
    r"[A-Za-z0-9][A-Za-z0-9_.+/=-]*", "a valid module: use name/version, of letters, digits and -_.+/=, with a letter or digit first"
)
_variable = matching(r"[A-Za-z_][A-Za-z0-9_]*=.*", "NAME=VALUE, with a name of letters, digits and _")
NODES = JobSetting("nodes", "N", "nodes", whole(1, MOST_NODES), 2)
GPUS = JobSetting("gpus-per-node", "G", "GPUs of each node", whole(0, 64), 0)
RANKS = JobSetting("ranks-per-node", "K", "ranks on each node (default: one per GPU, else 1)", whole(1, 1024))
CPUS = JobSetting("cpus-per-rank", "C", "cores per rank (default: the launcher's)", whole(1, 1024))
MINUTES = JobSetting("minutes", "M", "time limit", whole(1, 60 * 24 * 30), 30)
NAME = JobSetting("name", "NAME", "the job's name", word, "collbench")
PROGRAM = JobSetting("program", "PATH", "path of collbench on the nodes", path, "collbench")
RUNS = JobSetting("runs", "FOLDER", "folder of the run folders, on a file system that all nodes share", path, "runs")
ENV = JobSetting("env", "NAME=VALUE", "an environment variable for all ranks; may be repeated", _variable, many=True)
MODULES = JobSetting("module", "NAME", "an environment module to load first; may be repeated", _module, many=True)
IMAGE = JobSetting("image", "IMAGE", "a container image with collbench: registry/name:tag, or a .sif or .sqsh file", _image)
PORT = JobSetting("port", "PORT", "port of rank 0's node, at which the ranks connect", whole(1024, 65535), 29500)
HOSTS = JobSetting("hosts", "FILE", "a file with host names, one per line", path)

EVERYWHERE = (NODES, GPUS, RANKS, NAME, PROGRAM, RUNS, ENV)


# A site file: settings that all jobs of a cluster, or of a partition, have in common.
#
#     schema = 1
#     [defaults]
#     account = "infra"
#     [partitions.h100]
#     gpus-per-node = 8
#     env = ["NCCL_IB_HCA=mlx5"]
#
# Its keys are the names of the settings. `--partition h100` selects that table. The command line takes precedence, then the partition, then
# the defaults. The values of a setting that may be repeated are joined in the opposite order, so that the last one takes precedence.

_TOP = frozenset({"schema", "defaults", "partitions"})
_LARGEST_BYTES = 1 << 20


def of_site(file: Path, partition: str | None, known: Mapping[str, JobSetting], *, named: bool = False) -> dict[str, Value]:
    """Return the settings of a site file for a partition (None: only the defaults). `known`: the settings of all kinds, by name.

    `named`: the partition must be a table of the file. Raises UsageError for a file that cannot be read, an unknown key or partition, and
    an invalid value.
    """
    content = _read(file)
    defaults, partitions = content.get("defaults", {}), content.get("partitions", {})
    for where, table in (("defaults", defaults), ("partitions", partitions)):
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {where} is not a table: write [{where}{'.NAME' if where == 'partitions' else ''}]")
    if partition is not None and (partitions or named) and partition not in partitions:
        others = f"choose from {', '.join(partitions)}, or " if partitions else ""
        raise UsageError(f"{file}: unknown partition {partition!r}: {others}add [partitions.{partition}]")
    tables = {"defaults": defaults, **{f"partitions.{name}": table for name, table in partitions.items()}}
    parsed = {where: _parsed(f"{file}: [{where}]", table, known) for where, table in tables.items()}
    return together(parsed["defaults"], parsed.get(f"partitions.{partition}", {}))


def together(*parts: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of several places: the last one takes precedence; values of repeated settings are joined in this order."""
    found: dict[str, Value] = {}
    for place in parts:
        for name, value in place.items():
            before = found.get(name)
            found[name] = (*before, *value) if isinstance(before, tuple) and isinstance(value, tuple) else value
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parse_toml(read_file(file, _LARGEST_BYTES).decode())
    except OSError as error:
        raise UsageError(f"--site {file}: cannot be read ({error.strerror}): use a TOML file") from error
    except ValueError as error:
        raise UsageError(f"--site {file}: invalid TOML ({error})") from error
    unknown = sorted(set(content) - _TOP)
    if unknown:
        raise UsageError(f"{file}: unknown key {unknown[0]!r}: use schema, [defaults] and [partitions.NAME]")
    if content.get("schema") != 1:
        raise UsageError(f"{file}: missing schema = 1: add it as the first line")
    return content


def _parsed(where: str, table: Any, known: Mapping[str, JobSetting]) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table")
    return {name: _value(where, name, value, known) for name, value in table.items()}


def _value(where: str, name: str, value: Any, known: Mapping[str, JobSetting]) -> Value:
    if name not in known:
        raise UsageError(f"{where}: unknown key {name!r}: {nearest(name, known)}")
    setting = known[name]
    each = value if setting.many and isinstance(value, list) else [value]
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in each):
        raise UsageError(f"{where} {name} = {value!r}: not a text or a whole number{', or a list of texts' * setting.many}")
    parsed = tuple(parse_setting(setting, str(one), f"{where} {name}") for one in each)
    return tuple(map(str, parsed)) if setting.many else parsed[0]


def parse_setting(setting: JobSetting, text: str, where: str) -> str | int:
    """Return the setting's value. Raises UsageError that begins with `where`."""
    try:
        return setting.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
