"""--slowed in a launch: rows keep their backend's name and the slowdown, run.json has the specs, unused specs are rejected."""

import pytest

from collbench.backends.slowing import parse_slowing
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Request
from collbench.measuring.resume import request_difference
from collbench.measuring.tasks.cases import task_of
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.results.flags import FLAGS
from collbench.results.reader import read_run
from tests.cli.command import one_sentence, run_here
from tests.helpers import OF_THE_MACHINE
from tests.measure.launches import run_alone

SIZES = (1024, 2**16)


@pytest.fixture
def measured(tmp_path):
    """Measures two sizes on 4 virtual ranks, some seed, slowed by these specs; returns the stored run."""

    def of(*specs, name="run"):
        request = Request(
            "allreduce", Sweep((ALLREDUCE,), SIZES, (DTYPES["float32"],)), ("simulated",), frozenset(["simulated"]), ranks=4,
            budget=Budget(2, 20, 2), out=tmp_path / name, timeout_s=10.0, order_seed=1, slowed=parse_slowing(specs),
        )  # fmt: skip
        assert run_alone(task_of, request) == 0
        return read_run(tmp_path / name)

    return of


def by_size(found):
    return {row.size_bytes: row for row in found.rows}


def test_rows_that_were_slowed_report_it(measured):
    plain, found = by_size(measured(name="plain")), by_size(measured("by=10%  sizes=64K"))
    small, large = (found[size] for size in SIZES)
    assert set(small.flags) - OF_THE_MACHINE == {"simulated", "few_samples"}
    assert set(large.flags) - OF_THE_MACHINE == {"simulated", "slowed", "few_samples"}
    assert (small.evidence.get("slowed"), large.evidence["slowed"]) == (None, "by=10% sizes=64K")
    assert (large.backend, large.api, large.wrong, large.checked) == ("simulated", "simulated", 0, 1)
    assert large.time_s.p50 / plain[SIZES[1]].time_s.p50 == pytest.approx(1.10, abs=0.03)  # noise of another order
    assert small.time_s.p50 / plain[SIZES[0]].time_s.p50 == pytest.approx(1.0, abs=0.03)
    assert "--slowed" in FLAGS["slowed"].text


def test_the_run_has_the_specs_and_is_not_gone_on_with_under_others(measured):
    info = measured("by=2%; by=10% sizes=64K").info
    assert info["slowed"] == ["by=2%", "by=10% sizes=64K"]
    assert "slowed" not in measured(name="plain").info
    request = Request("allreduce", Sweep((), None, ()), ("simulated",), budget=Budget(2, 20, 2))
    assert "--slowed was by=2%; by=10% sizes=64K" in request_difference(info, request)


def test_a_spec_without_a_case_or_a_rank_measures_nothing(measured, tmp_path):
    with pytest.raises(UsageError, match="--slowed 'by=10% sizes=1M'"):
        measured("by=10% sizes=1M")
    with pytest.raises(UsageError, match="rank 4"):
        measured("by=10% ranks=4")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["allreduce"], ["run", "quick"]])
def test_every_measuring_command_has_it_and_its_twin(tmp_path, command):
    said = "--slowed 'by=10': by=10 is not a valid slowdown: use by=10%, by=5-15% or by=10±3% (up to 1000 %)"
    asked = [*command, "--backend", "simulated"]
    assert one_sentence(run_here(tmp_path, *asked, "--slowed", "by=10")) == said
    assert one_sentence(run_here(tmp_path, *asked, env={"COLLBENCH_SLOWED": "by=10"})) == said
