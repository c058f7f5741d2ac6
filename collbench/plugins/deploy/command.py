"""collbench emit KIND … -- allreduce …: write the file that a launcher needs to start a job."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.other_tools import command_named
from collbench.cli.parser import Parser, add_command
from collbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collbench.plugins.deploy.job import LauncherKind, LaunchJob, Value

_SUMMARY = "write a job for Slurm, mpirun, torchrun, Kubernetes, …"
_DESCRIPTION = (
    "Write a commented file that starts `collbench COMMAND …` on many nodes. The command follows --, and is the same for all kinds."
)
PARTITION = "partition"
_INNER = ("check", "run", "pairs", "hunt", "workload", "replay", "load", "kv", "probe", "doctor")
_FILES = ("routing", "traffic")  # options of the command with a file that every rank reads
_OWN = {"ranks": "--ranks-per-node before --", "ranks_per_node": "--ranks-per-node before --"}


_HELP = HelpEntry(
    group="Commands",
    follows="peak",
    examples=(
        ("emit slurm --nodes 2 -- allreduce", "print a Slurm script"),
        ("emit slurm --nodes 2 --write job.sh -- run gate", "write it to a file"),
        ("emit kubernetes --nodes 2 -- allreduce --backend nccl", "a job for Kubernetes"),
    ),
    expert="cpus_per_rank port group kind namespace pull_policy volume rdma hugepages shm memory runtime library interface "
    "bind system qos gpu_type mpi array container rendezvous endpoint program",
)


def add_emit(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, "emit", _SUMMARY, call_emit, _add_options, entry=_HELP, description=_DESCRIPTION)
    parser.keep_rest("inner", is_command=True)


def _add_options(parser: Parser) -> None:
    from collbench.plugins.deploy.kinds import kinds, knowing, settings

    parser.usage = "collbench emit KIND [OPTIONS] -- COMMAND …"
    parser.add_argument("launcher", metavar="KIND", help="; ".join(f"{kind.name}: {kind.summary}" for kind in kinds().values()))
    job = parser.add_argument_group("the job")
    for setting in (each for each in settings().values() if each.name != PARTITION):
        names = knowing(setting)
        default = f" (default: {setting.default})" if setting.default is not None else ""
        of_some = "" if len(names) == len(kinds()) else f"; for {', '.join(names)}"
        about = f"{setting.summary}{default}{of_some}".replace("%", "%%")
        job.add_argument(f"--{setting.name}", dest=setting.name, metavar=setting.metavar, action="append", help=about)
    file = parser.add_argument_group("the file")
    file.add_argument(f"--{PARTITION}", metavar="NAME", help="Slurm's partition; with --site, for all kinds, the table of the site file")
    file.add_argument("--site", metavar="FILE", type=Path, help="a TOML file with the settings of a cluster, by partition")
    file.add_argument("--write", metavar="FILE", type=Path, help="write to this file, executable if it is a script (default: stdout)")
    file.add_argument("--submit", action="store_true", help="submit it with sbatch or kubectl, and print the reply")


def call_emit(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file, and submit it with --submit; return 0. Raises UsageError."""
    from collbench.plugins.deploy.job import submit, write
    from collbench.plugins.deploy.kinds import kinds
    from collbench.report.screen import write_line

    if arguments.launcher not in kinds():
        raise UsageError(f"unknown kind '{arguments.launcher}': {nearest(arguments.launcher, kinds())}")
    kind = kinds()[arguments.launcher]
    job = _job(kind, arguments)
    text = kind.render(job)
    if arguments.write:
        write(arguments.write, text)
    if arguments.write and not arguments.submit:
        write_line(sys.stderr, f"collbench: wrote {arguments.write}; next: {kind.start.replace('FILE', shlex.quote(str(arguments.write)))}")
    if arguments.submit:
        print(submit(kind, text, os.environ))
    if not arguments.write and not arguments.submit:
        sys.stdout.write(text)
    return 0


def _job(kind: LauncherKind, arguments: argparse.Namespace) -> LaunchJob:
    from collbench.plugins.deploy.job import job_of, of_site, parse_setting, together
    from collbench.plugins.deploy.kinds import settings

    command = _inner(arguments.inner, kind)
    known = settings()
    usable = {each.name for each in kind.settings}
    given_settings = {
        name: [texts] if isinstance(texts, str) else texts for name in known if (texts := getattr(arguments, name)) is not None
    }
    table_alone = PARTITION not in usable and arguments.site is not None
    if table_alone:
        given_settings.pop(PARTITION, None)  # for this kind it only selects the table
    typed: dict[str, Value] = {}
    for name, texts in given_settings.items():
        values = [parse_setting(known[name], text, f"--{name}") for text in texts]
        typed[name] = tuple(map(str, values)) if known[name].many else values[-1]
    at_site = of_site(arguments.site, arguments.partition, known, named=table_alone) if arguments.site else {}
    # a site file may have settings of other kinds; on the command line these are an error
    return job_of(kind, command, together({name: value for name, value in at_site.items() if name in usable}, typed))


def _inner(words: Sequence[str] | None, kind: LauncherKind) -> tuple[str, ...]:
    """Return the command after --, with absolute paths of the files of `_FILES`.

    Raises UsageError if it is invalid, has an option that the launcher sets, or names a file that the job could not read.
    """
    from collbench.cli.main import parsed
    from collbench.operations.registry import commands
    from collbench.plugins.deploy.files import printable
    from collbench.plugins.training.workloads.routing import parse_routing

    known = (*sorted(commands()), *_INNER)
    if not words:
        raise UsageError("missing command: write it after --, as in `collbench emit slurm --nodes 2 -- allreduce`")
    words = [*command_named(words[0], known), *words[1:]]
    if words[0] not in known:
        raise UsageError(f"after --: '{words[0]}' cannot be started on many nodes: choose from {', '.join(known)}")
    try:
        found = parsed([printable(word) for word in words])
    except UsageError as error:
        raise UsageError(f"after --: {error}") from error
    for name, instead in _OWN.items():
        if getattr(found, name, None) is not None:
            raise UsageError(f"after --: --{name.replace('_', '-')} is set by the launcher: use {instead}")
    for name in _FILES:
        file = getattr(found, name, None)
        if isinstance(file, str):  # of --routing, which names a file or a generator
            try:
                file = parse_routing(file)
            except UsageError as error:
                raise UsageError(f"after --: {error}") from error
        if isinstance(file, Path):
            words = _with_file(words, f"--{name}", file, kind)
    return tuple(words)


def _with_file(words: Sequence[str], option: str, file: Path, kind: LauncherKind) -> list[str]:
    """Return the words with the file's absolute path: the job may start in another folder. Raises UsageError for a file that is missing.

    The pods of Kubernetes have the files of their image alone, which cannot be checked here.
    """
    if kind.name == "kubernetes" and not file.is_absolute():
        raise UsageError(f"after --: {option} {file}: a pod has only the files of its image: use an absolute path of a file in it")
    if kind.name != "kubernetes" and not file.is_file():
        raise UsageError(f"after --: {option} {file}: no such file here: give a file on a file system that all nodes share")
    found, path = list(words), str(file.absolute())
    for place, word in enumerate(found):
        if word.startswith(f"{option}="):
            found[place] = f"{option}={path}"
        elif word == option:
            found[place + 1] = path
    return found


def completed_words() -> dict[str, Iterable[str]]:
    """Return the possible values of the command's argument, for the completion of shells."""
    from collbench.plugins.deploy.kinds import kinds

    return {"emit KIND": kinds()}
