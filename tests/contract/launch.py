"""One launch of everything a contract test wants to know of a backend."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.measuring.tasks.cases import shuffled
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.conftest import everything
from tests.fake_gpu import environment

ROOT = Path(__file__).parent.parent.parent
_PLUGINS = "[collbench.operations]\nmade_up = tests.contract.made_up\none_sided = tests.contract.one_sided_faults\n"
_DEADLINE_S = "300" if everything() else "100"


@dataclass(frozen=True)
class Outcome:
    """How a launch ended: exit code, rows as planned, stderr."""

    code: int
    rows: list[Row]
    stderr: str


def launch(
    folder: Path, backend: str, ranks: int, sweeps: list[dict[str, Any]], *, python: str = sys.executable, lacks: Sequence[str] = (),
    **more: Any,
) -> Outcome:  # fmt: skip
    """Measures the sweeps with `ranks` ranks; the operations of made_up.py and one_sided_faults.py are installed as a plug-in's.

    lacks: what NCCL has not.
    """
    plugin = folder / "plugin" / "made_up-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(_PLUGINS)
    asked = {"backend": backend, "ranks": ranks, "out": str(folder / "run"), "sweeps": sweeps, **more}
    base = environment(ranks, lacks=lacks) if backend == "nccl" else os.environ
    env = {**base, "PYTHONPATH": os.pathsep.join([str(plugin.parent), str(ROOT), *filter(None, [base.get("PYTHONPATH")])])}
    line = ["timeout", "-k", "5", _DEADLINE_S, python, str(ROOT / "tests/contract/rank.py"), json.dumps(asked)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)
    return Outcome(done.returncode, _planned(read_run(folder / "run")) if (folder / "run").exists() else [], done.stderr)


def _planned(run: Run) -> list[Row]:
    """The rows in the order of the plan: they were measured, and are stored, in a shuffled one."""
    order = shuffled(len(run.rows), run.info["order_seed"], run.info["launch_index"])
    return [row for _, row in sorted(zip(order, run.rows, strict=True), key=lambda pair: pair[0])]
