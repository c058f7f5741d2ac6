"""The page's table of faults is the one that the kept runs give; `COLLBENCH_GOLDEN=1` writes it anew."""

import os
import re
from pathlib import Path

import pytest

from tests.faults.matrix.outcome import Outcome
from tests.faults.matrix.plan import FAULTS, LIBRARIES, PHASES, matrix, path_matrix
from tools.benchmarks.trials import faults
from tools.benchmarks.trials.series import trials_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/trust/fault-matrix.md"
MATRIX, DRAWN = ROOT / "reports/fault-matrix", ROOT / "reports/fault-random"
# MPICH cannot open while its link is down; Slurm's daemon remains if its link is cut (the page explains both).
OTHERS = {"link for a moment, init, MPICH srun, rank 0", "link, timed, Open MPI srun, rank 1"}
BLOCK = re.compile(r"(?<=<!-- table of: reports/fault-matrix -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def test_the_page_shows_what_came_out():
    wanted = faults.table(trials_in(MATRIX, Outcome)) + "\n"
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("COLLBENCH_GOLDEN"):
        PAGE.write_text(text := BLOCK.sub(lambda _: wanted, text), encoding="utf-8")
    assert BLOCK.findall(text) == [wanted]


def test_every_fault_in_every_phase_on_every_library_and_launcher_was_played_and_is_as_it_has_to_be():
    outcomes = trials_in(MATRIX, Outcome)
    assert {one.case.name for one in outcomes} == {case.name for case in (*matrix(slurm=True), *path_matrix())}
    assert {one.case.name for one in outcomes if not one.right} == OTHERS
    assert len(outcomes) == len(FAULTS) * len(PHASES) * (len(LIBRARIES) + 1) + len(path_matrix())


@pytest.mark.parametrize("folder", [MATRIX, DRAWN], ids=["matrix", "random"])
def test_the_folder_shows_what_its_lines_report(folder):
    make = faults.readme if folder == MATRIX else faults.readme_of_random
    assert (folder / "README.md").read_text(encoding="utf-8") == make(trials_in(folder, Outcome))
