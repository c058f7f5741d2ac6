"""Ranks looked at from inside: `mpiexec -n 2 python -m tools.benchmarks.ranks FOLDER allreduce …` measures as collbench does and
leaves, per rank, the modules it imported and its peak memory."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.benchmarks.launches import launch, module, mpiexec


@dataclass(frozen=True)
class Rank:
    """One rank at its end; peak_bytes is VmHWM: resident pages, those shared with other ranks included."""

    modules: list[str]
    peak_bytes: int


def inspect(arguments: Sequence[str]) -> list[Rank]:
    """Runs two ranks of a collbench command. Raises Missing without mpiexec."""
    with tempfile.TemporaryDirectory(prefix="benchmark-ranks-") as folder:
        launch(mpiexec(*module("ranks", folder, *arguments)))
        return [Rank(**json.loads(path.read_text())) for path in sorted(Path(folder).glob("*.json"))]


def peak_bytes() -> int:
    """Return VmHWM; the maximum of getrusage includes the process before exec."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def main() -> int:
    """One rank; leaves its file after MPI_Finalize."""
    folder, *arguments = sys.argv[1:]
    from collbench.cli.main import run

    code = run(arguments)
    rank = Rank(sorted({name.partition(".")[0] for name in sys.modules}), peak_bytes())
    (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(asdict(rank)))
    return code


if __name__ == "__main__":
    sys.exit(main())
