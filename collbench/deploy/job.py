"""A job, whatever starts it: what follows `collbench`, and how many nodes, ranks and GPUs it wants; the same for every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from collbench.errors import UsageError

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
