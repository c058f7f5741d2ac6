"""What may be said of a job of any kind; each kind adds what it alone knows."""

from __future__ import annotations

import re
from collections.abc import Callable

from collbench.deploy.job import Setting
from collbench.deploy.quoting import printable
from collbench.errors import UsageError

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
