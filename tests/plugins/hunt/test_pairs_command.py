"""`collbench pairs` as users start it: on every backend, under a launcher, what it prints and rejects."""

import csv
import io
import json
import re
from importlib.util import find_spec
from itertools import product

import pytest

from collbench.plugins.hunt.records import read_pairs
from collbench.results.reader import read_run
from tests.cli.command import BIN, run
from tests.conftest import sample

pytestmark = pytest.mark.long

BRIEF = ("--out", "run", "--size", "4K", "--window", "2")
MISSING = {"mpi": not find_spec("mpi4py"), "gloo": not find_spec("torch")}
STARTS = [
    pytest.param(*start, marks=pytest.mark.skipif(MISSING[start[0]], reason=f"no {start[0]}")) for start in product(MISSING, (2, 3, 4, 5))
]


def stored(folder):
    found = read_pairs(read_run(folder / "run"))
    assert found and not found.warnings
    return found


@pytest.mark.parametrize(("backend", "ranks"), sample(STARTS, 1))
def test_every_pair_of_ranks_is_measured(backend, ranks, tmp_path):
    done = run(tmp_path, "pairs", "--backend", backend, "--ranks", str(ranks), *BRIEF, "--format", "json")
    assert done.returncode in (0, 3), done.stderr  # more ranks than cores: a latency may be inconclusive
    found, actual = stored(tmp_path), json.loads(done.stdout)
    first = [pair for one in found.rounds if not one.again for pair in one.pairs]
    assert sorted(first) == [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    assert all((wrong, na) == (0, None) for one in found.rounds for wrong, na in zip(one.wrong, one.na, strict=True))
    assert actual["places"] == found.about["places"] and re.fullmatch(r"rank 0 \(.+\)", actual["places"][0])


@pytest.mark.skipif(MISSING["mpi"] or not (BIN / "mpiexec").exists(), reason="no MPI")
def test_under_a_launcher(tmp_path):
    program = (str(BIN / "mpiexec"), "-n", "3", str(BIN / "python"), "-m", "collbench")
    done = run(tmp_path, "pairs", *BRIEF, program=program)
    assert done.returncode == 0, done.stderr
    found = stored(tmp_path)
    assert (found.about["backend"], found.about["measured"], found.about["rounds"]) == ("mpi", 3, 3)


def test_a_line_per_round_is_talk_and_the_matrix_is_data(tmp_path):
    done = run(tmp_path, "pairs", "--backend", "simulated", "--ranks", "5", *BRIEF, "--format", "csv")
    assert done.returncode == 0, done.stderr
    rounds = re.findall(r"^round (\d) of 5: 2 pairs at once", done.stderr, re.MULTILINE)
    assert rounds == ["1", "2", "3", "4", "5"] and done.stderr.splitlines()[-1] == "run folder: run"
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == 20
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout + done.stderr)
