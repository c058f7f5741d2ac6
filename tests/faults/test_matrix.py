"""Faults that end soon, in every phase on every library; what judges the outcomes, and the page's table of them.

The whole matrix and the random faults take two hours: `python -m tools.benchmarks.trials.faults`. The tests check their committed results.
"""

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.cli.command import BIN
from tests.conftest import cannot, sample
from tests.faults.matrix.outcome import Observation, Outcome, accused, findings_of, judged
from tests.faults.matrix.plan import CUTS, FAULTS, LIBRARIES, PATH_FAULTS, PATH_LIBRARIES, PHASES, Case, intel_matrix, matrix, path_matrix
from tests.faults.matrix.play import outcome_of, player
from tests.faults.matrix.starting import OPENMPI
from tests.stored import stored_reports
from tests.testbeds import Missing
from tools.benchmarks.trials import faults
from tools.benchmarks.trials.series import trials_in

ROOT = Path(__file__).parents[2]
# What ends soon, but for ranks that a launcher's own clearing away may keep from speaking.
QUICK = [
    case for case in matrix(slurm=False)
    if case.fault in ("memory", "wrong data") or (case.fault in ("killed", "early exit") and case.launcher == "by hand")
]  # fmt: skip
KILLED = Case("killed", "timed", "gloo", "by hand", 2)
SAID = "hang: allreduce 1 MiB on gloo: measuring: rank 2 (h2, pid 7) never entered iteration 3; 3 of 4 ranks wait"
SEEN = Observation([SAID], [4, 4, 137, 4], 4, [8, 16], [8, 16], [], [], 1.0, 1.5, [])


@pytest.fixture(scope="module")
def place():
    try:
        with player(slurm=False) as found:
            yield found
    except Missing as why:
        cannot(why)


@pytest.mark.hosts
@pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
@pytest.mark.skipif(not (OPENMPI / "mpirun").exists(), reason="no Open MPI: `make openmpi-environment`")
@pytest.mark.skipif(ROOT.is_relative_to("/tmp"), reason="its hosts have a /tmp of their own, in which this project would not be seen")
class TestRealRanks:
    @pytest.mark.long
    @pytest.mark.parametrize("case", sample(QUICK, 1), ids=lambda case: case.name)
    def test_a_fault_ends_in_time_and_is_named(self, case, place):
        """A fault that meets the phase before the wanted one (four ranks share two cores) is played again. A wrong name fails at once."""
        outcome = place.play(case)
        if not outcome.right:
            assert not {rank for sentence in outcome.said for rank in accused(sentence)} - {case.victim}, outcome
            outcome = place.play(case)
        assert outcome.right, outcome

    @pytest.mark.impi
    @pytest.mark.long
    @pytest.mark.parametrize("case", sample(intel_matrix(), 2), ids=lambda case: case.name)
    def test_a_fault_on_intel_mpi(self, case, place, impi_python):
        self.test_a_fault_ends_in_time_and_is_named(case, place)

    @pytest.mark.long
    @pytest.mark.parametrize("case", sample([case for case in path_matrix() if case.fault == "mtu"], 1), ids=lambda case: case.name)
    def test_a_hole_for_large_packets_is_named_and_no_rank(self, case, place):
        outcome = place.play(case)
        assert outcome.right, outcome
        source, target = (place.bed.names[1 - case.host], place.bed.names[case.host])
        assert any(f"packets above 1000 bytes do not pass from {source} to {target}: check the MTU" in said for said in outcome.said), (
            outcome
        )

    @pytest.mark.long
    @pytest.mark.parametrize(("case", "flag"), [
        (Case("loss 5", "timed", "gloo", "by hand", 1), "lossy_path"),
        (Case("link for a moment", "timed", "gloo", "by hand", 2), "link_flapped"),
    ], ids=["loss", "link"])  # fmt: skip
    def test_a_run_that_goes_on_over_a_bad_path_has_a_flag(self, case, flag, place):
        outcome = place.play(case)
        assert outcome.right, outcome
        assert flag in outcome.flags or set(outcome.codes) != {0}, outcome


class TestCases:
    def test_every_fault_meets_every_phase_on_every_library(self):
        cases = matrix(slurm=False)
        assert {(case.fault, case.phase, case.library) for case in cases} == {
            (f, p, li) for f in FAULTS for p in PHASES for li in LIBRARIES
        }
        assert len(cases) == 120 and len(matrix(slurm=True)) == 160

    def test_every_rank_is_struck(self):
        for fault in set(FAULTS) - set(CUTS):
            assert {case.victim for case in matrix(slurm=False) if case.fault == fault} == {0, 1, 2, 3}

    def test_of_a_cut_link_each_side_may_name_the_other(self):
        assert {case.suspects for case in matrix(slurm=True) if case.fault in ("link", "control")} == {
            (frozenset({0, 1}), frozenset({2, 3}))
        }

    def test_a_seed_draws_the_same_again(self):
        assert faults.drawn(7) == faults.drawn(7)
        assert {faults.drawn(seed).fault for seed in range(faults.COUNT)} == set(FAULTS)


class TestFaultsOfPaths:
    def test_every_fault_strikes_each_host_on_every_library(self):
        cases = path_matrix()
        assert {(case.fault, case.library, case.host) for case in cases} == {
            (fault, library, host) for fault in PATH_FAULTS for library in PATH_LIBRARIES for host in (0, 1)
        }
        assert len(cases) == 54

    def test_a_seed_draws_the_same_again(self):
        assert faults.drawn_path(7) == faults.drawn_path(7)
        assert {faults.drawn_path(seed).fault for seed in range(faults.COUNT)} == set(PATH_FAULTS)

    @pytest.mark.parametrize(("fault", "sentence", "finding"), [
        ("mtu", "hang: x: packets above 1000 bytes do not pass from cb1h1 to cb1h2: check the MTU of both", "cause"),
        ("mtu", "hang: x: packets above 1000 bytes do not pass from cb1h2 to cb1h1: check the MTU of both", None),
        ("mtu", "x: no answer received from rank 0 (h1, pid 7): it is stopped, or the path from h1 to h2 drops packets; a", "unknown"),
        ("mtu", "hang: x: all 2 ranks answer, and no rank is behind the others: the path between them carries nothing, or", "unknown"),
        ("mtu", "hang: x: rank 1 (cb1h2, pid 7) is behind: still at y; 1 of 2 ranks waits", None),
        ("mtu", "hang: x: rank 1 (cb1h2, pid 7) is stopped (SIGSTOP, or a debugger holds it); 1 of 2 ranks waits", None),
        ("mtu", "hang: x: rank 1 (cb1h2, pid 7) is on a host that does not answer: it is down, or its link is cut; 1 of", None),
        ("nic 60 s", "hang: x: rank 1 (cb1h2, pid 7) is on a host that does not answer: it is down, or its link is cut; 1 of", "cause"),
        ("loss 30", "hang: x: packets from cb1h1 to cb1h2 are lost: 12 of 41 were sent again (29 %); check", "cause"),
        ("one way", "hang: x: the path between cb1h1 and cb1h2 drops packets: one of up to 1500 bytes", "cause"),
    ])  # fmt: skip
    def test_what_a_sentence_names(self, fault, sentence, finding):
        assert findings_of(Case(fault, "timed", "gloo", "by hand", 1), sentence) == finding


class TestWhatIsAccused:
    @pytest.mark.parametrize(("sentence", "ranks"), [
        (SAID, {2}),
        ("rank 1 (h1, pid 5): hang: opening gloo: rank 2 (h2, pid 7) is stopped; 3 of 4 ranks wait", {2}),
        ("hang: opening gloo: rank 0 (h1, pid 4) cannot be reached; reported by rank 2 (h2, pid 60)", {0}),
        ("hang: x: rank 2 (h2, pid 4) lost its control connection: it does not acknowledge what rank 0 sends", {2}),
        ("hang: joining: rank 0 does not answer; reported by rank 3", {0}),
        ("hang: joining over MPI: rank 2 (h, pid 3) has not moved for 5 s; look at the ranks that print no such line", set()),
        ("rank 1 (h1, pid 5): MPI_Allreduce failed in iteration 3: it returned no", {1}),
        ("ranks 2, 3 of 4 did not join within 5 s: see whether they started", {2, 3}),
        ("rank 2 (h2, pid 7), rank 3 (h2, pid 8) is on a host that does not answer", {2, 3}),
        ("rank 1 on h1 cannot connect to rank 0 at tcp://10.99.1.1:31075 within 5 s: check that rank 0 started", {0}),
        ("waiting for rank 0 of 2, as WORLD_SIZE=2 and RANK=1 are set here; to measure this host alone: `env -u RANK`", set()),
        ("results no longer written: no space left; 31 of 32 ranks wait", set()),
    ])  # fmt: skip
    def test_the_ranks_that_a_sentence_names(self, sentence, ranks):
        assert accused(sentence) == ranks


class TestJudging:
    def test_what_is_as_it_has_to_be(self):
        assert judged(KILLED, SEEN) == []

    @pytest.mark.parametrize(("changes", "word"), [
        ({"said": []}, "no sentence reports it"),
        ({"said": [SAID.replace("rank 2", "rank 1")]}, "names the wrong rank"),
        ({"said": [SAID.replace("measuring", "x")]}, "no sentence names the phase timed"),
        ({"codes": [4, 0, 137, 4]}, "the other ranks ended with [0, 4], not 4"),
        ({"stored_code": None}, "run.json has None, not 4"),
        ({"kept": [8]}, "the cases of [16] bytes were stored and are lost"),
        ({"finished": [8], "kept": [8]}, "1 cases were stored before the fault, and had to be 2"),
        ({"seconds": 15.1}, "the last rank ended after 15.1 s"),
        ({"launcher_s": 15.1}, "the launcher ended after 15.1 s"),
        ({"left": ["port 29541"]}, "port 29541 was left"),
        ({"traceback": True}, "a traceback was shown"),
        ({"struck": False}, "the fault never struck"),
    ])  # fmt: skip
    def test_what_is_not(self, changes, word):
        (found,) = judged(KILLED, replace(SEEN, **changes))
        assert word in found

    def test_a_pause_must_do_no_harm_and_be_flagged(self):
        case = replace(KILLED, fault="paused")
        fine = replace(SEEN, said=[], codes=[0] * 4, stored_code=0, flags=["straggler"], seconds=20.0, launcher_s=20.0)
        assert judged(case, fine) == []
        assert len(judged(case, replace(fine, flags=[]))) == 1
        assert "though nothing lasted" in judged(case, replace(fine, codes=[4] * 4))[0]

    def test_wrong_data_do_not_stop_the_run(self):
        case, detail = replace(KILLED, fault="wrong data"), "rank 2: 1 wrong element, first at 7: wanted 3.0, got 4.0"
        fine = replace(SEEN, said=[], codes=[4] * 4, kept=[8, 16, 32, 64], wrong=[detail] * 2)
        assert judged(case, fine) == []
        assert judged(case, replace(fine, wrong=[detail]))[0].startswith("1 rows ")
        assert "a row has" in judged(case, replace(fine, wrong=[detail, detail.replace("rank 2", "rank 1")]))[0]

    @pytest.mark.parametrize(
        ("fault", "phase", "right"), [("memory", "timed", True), ("memory", "gather", True), ("killed", "timed", False)]
    )
    def test_memory_may_run_out_between_two_phases(self, *, fault, phase, right):
        said = ["rank 2 (h2, pid 7): no memory is left during work between two phases"]
        found = judged(replace(KILLED, fault=fault, phase=phase), replace(SEEN, said=said, codes=[4] * 4))
        assert any("names the phase" in words for words in found) != right

    def test_a_full_disk_is_the_users_to_fix_before_the_first_case(self):
        case = replace(KILLED, fault="disk", phase="init")
        full = replace(
            SEEN, said=["run folder runs/x: No space left on device: make room"], codes=[2] * 4, finished=[], kept=[], stored_code=None
        )
        assert judged(case, full) == []
        assert judged(replace(case, phase="timed"), replace(full, codes=[4] * 4, finished=[8, 16], kept=[8, 16])) == []


class TestTables:
    def test_the_matrix(self):
        right, wrong = outcome_of(KILLED, SEEN), outcome_of(replace(KILLED, phase="init"), replace(SEEN, said=[]))
        lines = faults.table([right, wrong]).splitlines()
        assert lines[0] == "| fault | phase | gloo, by hand |"
        assert lines[2:4] == [
            "| SIGKILL | init | rank 2: **1 failed check**, code 4, 1.0 s |",
            "| SIGKILL | timed | rank 2: code 4, 1.0 s |",
        ]
        assert lines[-1] == "- killed, init, gloo by hand, rank 2: no sentence reports it"

    def test_random_faults(self):
        fine = outcome_of(replace(KILLED, phase="", after_s=1.0), SEEN)
        lines = faults.table_of_random([fine, outcome_of(fine.case, replace(SEEN, kept=[], left=["port 1"]))]).splitlines()
        assert lines[2] == "| SIGKILL | 2 | 1 | 0 | 1 | 1 | 1.0 to 1.0 |" and lines[3].startswith("| **all** | 2 |")

    def test_what_was_played_is_not_played_again(self, tmp_path):
        outcome = outcome_of(KILLED, SEEN)
        (tmp_path / "trials.jsonl").write_text(json.dumps(asdict(outcome)) + "\n")
        assert list(faults.series(tmp_path, [KILLED], faults.readme)) == []
        assert trials_in(tmp_path, Outcome) == [outcome]


PAGE = ROOT / "docs/trust/fault-matrix.md"
MATRIX = stored_reports() / "fault-matrix"
DRAWN = stored_reports() / "fault-random"
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
    assert (ROOT / "reports" / folder.name / "README.md").read_text(encoding="utf-8") == make(trials_in(folder, Outcome))
