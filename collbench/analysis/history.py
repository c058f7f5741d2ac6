"""Earlier launches of the same kind in the folder of a run: how far launches of a case differ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from collbench.analysis.differences import apart
from collbench.errors import UsageError
from collbench.results.reader import Run, read_run
from collbench.results.store import read_object
from collbench.untrusted import list_of

_MOST = 20  # the newest ones are read


def history(a: Run, b: Run) -> list[Run]:
    """Return other runs in the folder of a, or of b, with its software, settings, hosts and links; those of the one with more."""
    pair = {a.path.resolve(), b.path.resolve()}
    beside_a, beside_b = ([earlier for earlier in _beside(run, pair) if not apart(run, earlier)] for run in (a, b))
    return max(beside_a, beside_b, key=len)


def _beside(run: Run, left_out: set[Path]) -> Iterator[Run]:
    """Yield the newest finished runs of the same operation and hosts, without those that were slowed down on purpose."""
    try:
        folders = sorted((path for path in run.path.resolve().parent.iterdir() if path not in left_out), reverse=True)
    except OSError:
        return
    number = 0
    for folder in folders:
        if number == _MOST:
            return
        try:
            info = read_object(folder / "run.json")
            is_similar = info.get("operation") == run.info.get("operation") and _hosts(info) == _hosts(run.info)
            if is_similar and "finished_utc" in info and "slowed" not in info:
                yield _read(folder)
                number += 1
        except (OSError, ValueError, UsageError):
            continue


@lru_cache(maxsize=64)  # a page compares several runs with one baseline
def _read(folder: Path) -> Run:
    return read_run(folder)


def _hosts(info: object) -> list[str]:
    return sorted(list_of(info.get("hosts"), str)) if isinstance(info, dict) else []
