"""Rows of training's traffic: stored, read back, invalid ones of untrusted files left out; and the efficiency of a step."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from collbench.machine.peak.ceiling import Ceiling
from collbench.plugins.training import FILE, records
from collbench.plugins.training.records import Estimate, PartRow, RoutedStep, Share, StepRow, WayBytes, efficiency
from collbench.plugins.training.text import TRAINING
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Times
from collbench.results.store import parse_object, to_line
from tests.plugins.training.reading import read_workload

CEILING = Ceiling("network", 125e6, "NIC eth0 1 Gb/s", source="sysfs")
TIMES = Times(0.02, 0.019, 0.021, 0.018, 0.022, 0.023, 0.024)
PART_JSON = {
    "what": "gradients, buckets 1 to 3 of 3", "operation": "allreduce", "groups": 1, "group_ranks": 2, "size_bytes": 1 << 20, "times": 3,
    "moved_bytes": 3.0 * (1 << 20), "time_s": asdict(TIMES), "busbw_bytes_per_s": 1e8, "ceiling": CEILING.as_json(),
    "percent_of_ceiling": 80.0,
}  # fmt: skip
PART = PartRow.decoded(PART_JSON)
ROW = StepRow(
    "data-parallel", "bert-large", "mpi", "cpu", 2, 2, "float32", 340_000_000, 25 << 20, 1_360_000_000, 1.36e9, {"update": "sharded"},
    "flat", None, 60, TIMES, "precision", 1e8, CEILING, 0.016, 80.0, (PART,), 0.06, 1, 0, None, ("drift",),
    records.Staleness(
        p50=1.0, p95=2.0, max=3.0, workers=(records.WorkerPace(rank=1, steps=4),),
        servers=(records.ServerUpdates(rank=0, updates=4),), steps_per_s=4.0, duration_s=1.0,
    ), {"loop": "native"},
)  # fmt: skip
ROUTED = records.RoutingResult(
    "zipf:1.2, seed 0:1f2e3d4c", 16, 4, 12,
    records.TimeQuantiles(
        Estimate(0.010, 0.009, 0.011), Estimate(0.012, 0.0118, 0.0124), Estimate(0.015, 0.014, 0.016), Estimate(0.016, 0.015, 0.018)
    ),
    Estimate(0.008, 0.0079, 0.0081), Estimate(1.5, 1.48, 1.53), WayBytes("float8_e4m3fn", 8 * 2.0**20), WayBytes("bfloat16", 16 * 2.0**20),
    (
        RoutedStep(3, Estimate(0.010, 0.009, 0.011), Estimate(1.25, 1.2, 1.3), 1.3, 2, 0.31, 2.0**20, 1e8, 1.25e8, 80.0),
        RoutedStep(4, Estimate(0.016, 0.015, 0.018), Estimate(2.0, 1.99, 2.005), 2.1, 0, 0.5, 2.0**21),
    ),
)  # fmt: skip
MOE = ROW.replace(regime="expert-parallel", backend="gloo", parts=(), staleness=None, options={"routing": "zipf:1.2"}, routing=ROUTED)
NA_FACT = {"kind": "text", "text": "no GPU here"}
NA = StepRow("fsdp", "1M", "nccl", "cuda", 2, 1, "float32", 10, 4, 40, 0.0, na="no GPU here", na_fact=NA_FACT)
NAMES = st.sampled_from([*ROW.as_json(), "made up"])
SECONDS = st.floats(1e-6, 1e4)


def test_rows_come_back_as_they_were_and_what_a_run_reports_of_them(tmp_path):
    for row in (ROW, NA):
        assert StepRow.decoded(parse_object(to_line(row.as_json()).encode())) == row
    assert StepRow.decoded(parse_object(to_line(MOE.as_json()).encode())).routing == ROUTED
    assert ROW.routing is None
    folder = RunFolder.create(tmp_path / "run", "workload", {"workload": {"ranks": 2}})
    folder.append_record(ROW.as_json(), FILE)
    folder.append_record(NA.as_json(), FILE)
    folder.finish(exit_code=0)
    assert TRAINING.holds(read_run(tmp_path / "run"))
    assert read_workload(tmp_path / "run") == ({"ranks": 2}, [ROW, NA], [])
    RunFolder.create(tmp_path / "other", "allreduce", {}).finish(exit_code=0)
    assert not TRAINING.holds(read_run(tmp_path / "other"))
    assert read_workload(tmp_path / "other") == ({}, [], [])


def test_a_line_that_was_cut_or_altered_is_a_warning(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "workload", {})
    folder.append_record(ROW.as_json(), FILE)
    folder.finish(exit_code=0)
    with (tmp_path / "run" / FILE).open("a") as file:
        file.write(to_line({**ROW.as_json(), "payload_bytes": -1}) + "\n")
        file.write(to_line({**ROW.as_json(), "parts": [{**PART_JSON, "times": "3"}]}) + "\n")
        file.write('{"regime":"data-par')
    _, rows, warnings = read_workload(tmp_path / "run")
    assert rows == [ROW]
    assert any("line 2: 'payload_bytes' is '-1'" in warning for warning in warnings)
    assert any("in the middle of line 4" in warning for warning in warnings)


@pytest.mark.parametrize(("changes", "why"), [
    ({"time_s": {**asdict(TIMES), "max": -1}}, "'time_s.max' is '-1"),
    ({"ceiling": {**CEILING.as_json(), "limited_by": 4}}, "'ceiling.limited_by' is '4'"),
    ({"staleness": {"workers": [{"rank": "x"}]}}, "'staleness.workers[0].rank' is 'x'"),
    ({"routing": {**asdict(ROUTED), "steps": [{**asdict(ROUTED.steps[0]), "busiest_rank": -1}]}}, "[0].busiest_rank' is '-1'"),
    ({"routing": {**asdict(ROUTED), "tax": {"value": "high"}}}, "'routing.tax.value' is 'high'"),
    ({"parts": [{}]}, "fields are missing"), ({"parts": [{**PART_JSON, "times": "3"}]}, "'parts[0].times' is '3'"),
    ({"parts": [{**PART_JSON, "times": -3}]}, "'parts.times' is '-3'"), ({"wrong": True}, "'wrong' is 'True'"),
    ({"computing": {"goal_s": "x", "stated": True}}, "'computing.goal_s' is 'x'"),
    ({"computing": {"goal_s": 1.0, "stated": True, "overlap": {"both_s": []}}}, "'computing.overlap"),
])  # fmt: skip
def test_what_does_not_fit_is_named(changes, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        StepRow.decoded({**json.loads(json.dumps(ROW.as_json())), **changes})


def test_the_ends_of_a_part_are_fields_or_of_an_earlier_version_in_its_name():
    assert PART.replace(what="a … b … c", ends=("a … b", "c")).names == ("a … b", "c")
    assert PART.replace(what="bucket 1 of 4 … bucket 3 of 4").names == ("bucket 1 of 4", "bucket 3 of 4")
    assert "ends" not in PART.as_json()
    _, rows, warnings = read_workload(Path(__file__).parents[3] / "reports/training")
    assert (warnings, [part.names for part in rows[0].parts]) == ([], [(part.what,) * 2 for part in rows[0].parts])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.dictionaries(st.sampled_from([*PART_JSON]), VALUES, max_size=2))
def test_any_line_is_a_row_or_a_value_error(changes, of_part):
    values = {**ROW.as_json(), "parts": [{**PART_JSON, **of_part}], **changes}
    try:
        found = StepRow.decoded(values)
    except ValueError:
        return
    assert isinstance(found, StepRow) and isinstance(found.as_json(), dict)
    assert all(isinstance(part.size_bytes, int) for part in found.parts)


def test_an_efficiency_by_hand_is_between_no_overlap_and_a_perfect_one():
    found = efficiency(0.180, 0.060, 0.045, 0.120)
    assert (found.apart.value, found.apart.low, found.apart.high) == pytest.approx((180 / 240, 180 / 300, 180 / 225))
    assert found.overlap == Share(1.0, 1.0, 1.0)
    found = efficiency(0.1, 0.4, 0.2, 0.5)
    assert (found.apart.value, found.overlap.value) == pytest.approx((0.2, 0.25))
    assert (found.overlap.low, found.overlap.high) == pytest.approx((0.2, 0.5))
    found = efficiency(0.3, 0.1).apart
    assert found.value == pytest.approx(0.75) and (found.low, found.high) == (None, None)
    assert efficiency(0.3, 0.0).apart.value == efficiency(0.3, 0.0).overlap.value == 1.0


@given(SECONDS, SECONDS, SECONDS)
def test_the_ends_are_in_order(compute_s, one, other):
    low, high = sorted((one, other))
    found = efficiency(compute_s, (low + high) / 2, low, high)
    for share in (found.apart, found.overlap):
        assert 0 < share.low <= share.value * (1 + 1e-12) and share.value <= share.high * (1 + 1e-12) <= 1 + 1e-9
    assert found.apart.value <= found.overlap.value <= 2 * found.apart.value * (1 + 1e-12), "overlap halves a step at most"


@pytest.mark.parametrize("times", [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (float("nan"), 1.0), (1.0, float("nan"))])
def test_times_that_are_none(times):
    with pytest.raises(ValueError, match="more than 0 s"):
        efficiency(*times)
