"""python -m tools.benchmarks [NAME …] [--pairs N] [--write] [--raw FOLDER]: measure and print the tables; --write keeps them.

With names, the sections of the others stay unchanged, and the named ones have the date of their measurement.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.benchmarks.figures import Outcome
from tools.benchmarks.launches import LaunchFailed, Missing

_HERE = Path(__file__).parent
_NAMES = (
    "startup", "answers", "first_number", "loop_cost", "memory", "probe", "ceilings_1024", "topology_build", "host_list", "pairs_1024",
    "hunt_512", "nccl_log", "evidence_cost", "suite_overhead", "report_html", "import_log", "trace_reading", "gate_10k",
    "control_5000", "control_fuzz", "heartbeat_8b", "store", "folder_fuzz", "socket_iperf", "stack_loops", "against_c", "recording_cost",
    "ucc_perftest",
)  # fmt: skip


def main() -> int:
    """Run the named benchmarks, or all; return 1, without writing anything, if any could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description="Measures what collbench promises of itself.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(_NAMES)} (default: all)")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of launches, or launches, instead of each benchmark's own number")
    parser.add_argument("--write", action="store_true", help="keep the tables in RESULTS.md")
    parser.add_argument("--raw", type=Path, metavar="FOLDER", help="write the raw figures there, a file for each benchmark")
    parser.add_argument("--note", default="", help="a sentence for RESULTS.md on what else was running")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(_NAMES))
    if unknown:
        parser.error(f"no benchmark {unknown[0]}")
    compileall.compile_dir(_HERE.parents[1] / "collbench", quiet=2)  # as pip does: without it, each launch may compile the sources again
    before = _load()
    outcomes = [outcome for name in chosen.names or _NAMES if (outcome := _measured(name, chosen.pairs))]
    complete = len(outcomes) == len(chosen.names or _NAMES)
    if chosen.write and complete:
        text = _some(outcomes, before, chosen.note) if chosen.names else _all(outcomes, before, chosen.note)
        (_HERE / "RESULTS.md").write_text(text)
    if chosen.raw and complete:
        _write_raw(outcomes, chosen.raw)
    return 0 if complete else 1


def _measured(name: str, pairs: int | None) -> Outcome | None:
    try:
        outcome: Outcome = import_module(f"tools.benchmarks.{name}").measure(*([pairs] if pairs else []))
    except (Missing, LaunchFailed) as why:
        print(f"## {name}\n\nnot measured: {why}\n", flush=True)
        return None
    print(outcome.markdown(), flush=True)
    return outcome


def _all(outcomes: list[Outcome], before: str, note: str) -> str:
    return "\n".join([_head(before, note), *(outcome.markdown() for outcome in outcomes)])


def _some(outcomes: list[Outcome], before: str, note: str) -> str:
    """Return RESULTS.md with these sections in place of the old ones, new ones last."""
    head, *old = re.split(r"^(?=## )", (_HERE / "RESULTS.md").read_text(), flags=re.MULTILINE)
    sections = {section.split()[1]: section for section in old}
    when = f"Measured {_today()} on the same machine, load average (1 min) {before} before and {_load()} after. {note}".rstrip() + " "
    for outcome in outcomes:
        title, _, rest = outcome.markdown().partition("\n\n")
        sections[outcome.name] = f"{title}\n\n{when}{rest}"
    return head + "\n".join(section.rstrip("\n") + "\n" for section in sections.values())


def _write_raw(outcomes: list[Outcome], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        lines = [json.dumps({name: _short(value) for name, value in record.items()}) for record in outcome.raw]
        (folder / f"{outcome.name}.jsonl").write_text("\n".join(lines) + "\n")


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _head(before: str, note: str) -> str:
    return f"""# Speed and memory of collbench itself

Measured {_today()} by `python -m tools.benchmarks --write`. Medians over launches with rank-based 95 % intervals;
met: the whole interval is on the right side of the target.

Machine: {os.cpu_count()} virtual cores ({_processor()}), shared with others and noisy; {platform.system()} {platform.release()}, \
Python {platform.python_version()}, {_mpi()}. Load average (1 min) {before} before and {_load()} after; one run of two \
MPI ranks is 2. {note}
"""


def _today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _mpi() -> str:
    try:
        from collbench.backends.mpi import library_name, load_mpi

        return library_name(load_mpi())
    except Exception:
        return "no MPI"


if __name__ == "__main__":
    sys.exit(main())
