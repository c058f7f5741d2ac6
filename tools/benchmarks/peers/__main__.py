"""python -m tools.benchmarks.peers [--osu DIR] [--imb FILE] [--gloo FILE]: the peers given, each in turns with collbench."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from collbench.errors import UsageError
from collbench.launch.spawn import find_mpiexec, mpiexec_family
from tools.benchmarks.figures import Outcome
from tools.benchmarks.launches import LaunchFailed, Missing
from tools.benchmarks.peers import gloo, imb, osu, osu_nonblocking
from tools.benchmarks.peers.contest import Contest, compete

_PEERS = {"osu": "DIR", "imb": "FILE", "gloo": "FILE"}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tools.benchmarks.peers", description="Ratios of collbench to other benchmarks.")
    made.add_argument("--osu", type=Path, metavar="DIR", help="the folder in which OSU's micro-benchmarks were built or installed")
    made.add_argument("--imb", type=Path, metavar="FILE", help="the program IMB-MPI1")
    made.add_argument("--gloo", type=Path, metavar="FILE", help="the program `benchmark` of gloo's build")
    made.add_argument("--pairs", type=_count, default=20, metavar="N", help="pairs that must count, per contest (default: 20)")
    made.add_argument("--most", type=_count, metavar="N", help="pairs run at most, repeated ones included (default: 3 × --pairs)")
    made.add_argument("--only", metavar="TEXT", default="", help="only contests with this in their name, or one of these: TEXT,TEXT")
    made.add_argument("--write", type=Path, metavar="DIR", help="keeps RESULTS.md and raw/ there; only if everything could be measured")
    made.add_argument("--note", default="", help="a sentence for RESULTS.md on what else was running")
    return made


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of pairs")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything asked for was measured, 1 if not, 2 if a path is no such program."""
    chosen = parser().parse_args(argv)
    try:
        return _run(chosen)
    except (UsageError, Missing) as why:
        print(f"peers: {why}", file=sys.stderr)
        return 2


def _run(chosen: argparse.Namespace) -> int:
    begun = _load()
    found = [contest for contest in _contests(chosen) if any(text in contest.name for text in chosen.only.split(","))]
    outcomes = [outcome for contest in found if (outcome := _measured(contest, chosen.pairs, chosen.most or 3 * chosen.pairs))]
    if chosen.write and found and len(outcomes) == len(found):
        _write(chosen.write, outcomes, begun, chosen.note)
    return 0 if found and len(outcomes) == len(found) else 1


def _contests(chosen: argparse.Namespace) -> list[Contest]:
    """Those of the peers that were given; a line about each that was not."""
    makers: dict[str, Callable[[Path], list[Contest]]] = {
        "osu": _osu_contests,
        "imb": lambda path: imb.contests(imb.open_imb(path)),
        "gloo": lambda path: gloo.contests(gloo.open_gloo(path)),
    }
    found = []
    for name, maker in makers.items():
        path = getattr(chosen, name)
        if path is None:
            print(f"{name}: not measured: give --{name} {_PEERS[name]}\n", flush=True)
        else:
            found += maker(path.resolve())
    return found


def _osu_contests(path: Path) -> list[Contest]:
    opened = osu.open_osu(path)
    return [*osu.contests(opened, _family()), *osu.contests_with_itself(opened), *osu_nonblocking.contests(opened)]


def _measured(contest: Contest, wanted: int, most: int) -> Outcome | None:
    try:
        outcome = compete(contest, wanted, most)
    except LaunchFailed as why:
        print(f"## {contest.name}\n\nnot measured: {why}\n", flush=True)
        return None
    print(outcome.markdown(), flush=True)
    return outcome


def _write(folder: Path, outcomes: Sequence[Outcome], begun: str, note: str) -> None:
    try:
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        (folder / "RESULTS.md").write_text("\n".join([_head(begun, note), *(outcome.markdown() for outcome in outcomes)]))
        for outcome in outcomes:
            (folder / "raw" / f"{outcome.name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in outcome.raw))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): name another folder with --write") from error


def _head(begun: str, note: str) -> str:
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    on = f"{os.cpu_count()} cores ({processor[1] if processor else platform.machine()}), {platform.system()} {platform.release()}"
    return f"""# collbench compared with other benchmarks

Measured {when} by `python -m tools.benchmarks.peers`; `raw/` has every pair, including those not counted.
A ratio is collbench's time over the peer's within a pair of launches; the median over pairs and its 95 % interval are shown. The order
within pairs alternates. A pair counts if the state probes before, between and after its launches agree within 20 %; else it is repeated.

Machine: {on}; MPI: {_family()}. Load average (1 min) {begun} before and {_load()} after. {note}
"""


def _family() -> str:
    found = find_mpiexec(os.environ)
    return mpiexec_family(found) if found else "none"


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
