"""What a row shows, word for word, and which devices of a machine its ceiling names."""

from typing import Any

import pytest
from msgspec.structs import replace

from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling, ceiling_from_rate, no_ceiling
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, LimitPart, NicLimit, PcieLimit
from collbench.machine.peak.links import limiting_parts
from collbench.machine.peak.node import Job, node_of
from collbench.operations.case import Split
from collbench.report import cases
from collbench.report.frame import printable
from collbench.report.plan import PlanSummary
from collbench.results.flags import DOUBTFUL, FLAGS, explain
from collbench.results.reader import row_from_json
from tests.helpers import make_case
from tests.machine.machines import dgx, laptop, mesh, pcie_box
from tests.results.rows import COPY, NIC, make_row, make_times, not_measured

BOUND = Ceiling("network", 40e9, "NIC 4×100 Gb/s", "bound")
MEASURED = Ceiling("measured", 52e9, "memory copy", low_bytes_per_s=51.2e9, high_bytes_per_s=53e9)
LIMIT = Ceiling("network", 64.6e9, "NIC 4×100 Gb/s", "bound")


@pytest.mark.parametrize(("changes", "figures", "limit"), [
    ({}, "42.0 of 50.0 GB/s (84 %)", "NIC 4×100 Gb/s (ring)"),
    ({"percent_of_ceiling": 0.0026}, "42.0 of 50.0 GB/s (<0.1 %)", None),
    ({"percent_of_ceiling": 0.62}, "42.0 of 50.0 GB/s (0.6 %)", "NIC 4×100 Gb/s (ring)"),
    ({"ceiling": COPY, "percent_of_ceiling": 123.5}, "42.0 of 34.0 GB/s (faster than measured reference)",
     "memory copy and sum (measured)"),
    ({"ceiling": BOUND, "percent_of_ceiling": 105}, "42.0 of 40.0 GB/s (above the hard limit: its inputs are doubtful)", None),
    ({"ceiling": NIC, "percent_of_ceiling": 107}, "42.0 of 50.0 GB/s (107 %)", None),
    ({"hard_bound": LIMIT}, "42.0 of 50.0 GB/s (84 %, hard limit 65 %)", "NIC 4×100 Gb/s (ring)"),
    ({"hard_bound": replace(LIMIT, bytes_per_s=50e9)}, "42.0 of 50.0 GB/s (84 %)", "NIC 4×100 Gb/s (ring and hard limit)"),
    ({"ceiling": LIMIT, "hard_bound": LIMIT, "percent_of_ceiling": 65}, "42.0 of 64.6 GB/s (65 %)", "NIC 4×100 Gb/s (hard limit)"),
    ({"hard_bound": LIMIT, "percent_of_ceiling": None}, "–", None),
    ({"ceiling": ceiling_from_rate(84), "percent_of_ceiling": 50}, "42.0 of 84.0 GB/s (50 %)", "the ceiling given"),
    ({"ceiling": no_ceiling("veth has no speed"), "percent_of_ceiling": None}, "–", "veth has no speed"),
    ({"ceiling": MEASURED, "percent_of_ceiling": 80}, "42.0 of 52.0 GB/s (80 %)", "memory copy (measured 51.2–53.0)"),
    ({"ceiling": replace(MEASURED, disturbed=True), "percent_of_ceiling": None}, "–", "memory copy (measured 51.2–53.0)"),
    ({"ceiling": NIC, "percent_of_ceiling": None}, "–", "NIC 4×100 Gb/s"),
    ({"ceiling": None, "percent_of_ceiling": None}, "–", "–"),
    ({"ranks": 1, "busbw_bytes_per_s": 0.0, "percent_of_ceiling": None}, "one rank: no bus", "–"),
])  # fmt: skip
def test_of_ceiling_and_limited_by(changes: dict[str, Any], figures: str, limit: str | None) -> None:
    row = make_row(**changes)
    assert cases.of_ceiling(row) == figures
    if limit is not None and row.ranks > 1:
        assert cases.limited_by(row) == limit


def test_the_percentages_of_a_curve_never_change_their_base() -> None:
    """Around the ring reference and far above it, more bandwidth is a higher percentage of both."""
    ring, limit = Ceiling("topology", 450e9, "NVLink 18×25 GB/s"), Ceiling("topology", 700e9, "NVLink 18×25 GB/s", "bound")
    rates = (200e9, 449e9, 451e9, 482e9, 690e9)
    rows = [make_row(busbw_bytes_per_s=rate, percent_of_ceiling=rate / 4.5e9, ceiling=ring, hard_bound=limit) for rate in rates]
    assert [cases.of_ceiling(row) for row in rows] == [
        "200 of 450 GB/s (44 %, hard limit 29 %)", "449 of 450 GB/s (100 %, hard limit 64 %)", "451 of 450 GB/s (100 %, hard limit 64 %)",
        "482 of 450 GB/s (107 %, hard limit 69 %)", "690 of 450 GB/s (153 %, hard limit 99 %)",
    ]  # fmt: skip
    percents = [(row.as_json()["percent_of_ceiling"], row.as_json()["percent_of_hard_bound"]) for row in rows]
    assert percents == sorted(percents)


def test_wrong_elements_cannot_be_overlooked_and_text_from_files_cannot_steer_a_terminal() -> None:
    assert [cases.wrong(make_row(wrong=count)) for count in (None, 0, 12)] == ["–", "0", "WRONG 12"]
    row = make_row(flags=("few_samples",), wrong_detail="first at 3: wanted 6, got 2")
    assert cases.remarks(row) == "few samples, first at 3: wanted 6, got 2"
    assert printable("a\x1b[2J\n\r\u202eb×µ–") == "a?[2J???b×µ–"
    assert cases.not_available(not_measured("\x1b]0;x\x07")) == "n/a (?]0;x?)"


def test_times_of_two_values_and_intervals_are_in_microseconds_and_text_all_the_same() -> None:
    assert cases.interval(make_row(time_s=make_times(1e-3))) == "990.0–1010"
    assert cases.interval(not_measured("x")) == "–"
    assert cases.times(make_row(time_s=make_times(1e304))) == "inf"
    assert cases.times(make_row(time_s=make_times(1e20))) == "1e+26"
    row = make_row(8, modes=MODES, flags=("two_modes",))
    assert cases.times(row) == "2.300 82 % / 10.70 18 %"
    assert cases.times(row, " µs") == "2.300 µs 82 % / 10.70 µs 18 %"
    assert cases.times(make_row(time_s=make_times(2.3e-6))) == "2.300"


MODES = [{"time_s": 2.3e-6, "share": 0.82}, {"time_s": 10.7e-6, "share": 0.18}]


@pytest.mark.parametrize("modes", [[], MODES[:1], [1, "x"], [{"time_s": "2"}, {"share": 1.0}], [{"time_s": 1e-6, "share": None}, MODES[0]]])
def test_modes_that_are_not_two_pairs_of_numbers_are_none(modes: list[Any]) -> None:
    row = make_row(modes=modes)
    assert (cases.two_modes(row), cases.times(row)) == ([], "2399")


def test_a_doubtful_interval_does_not_look_like_a_good_one_unless_launches_are_its_evidence() -> None:
    row = make_row(time_s=make_times(1e-3), flags=("simulated", "remeasured", "python_loop", "missing_launches"))
    assert (cases.interval(row), cases.doubtful(row)) == ("990.0–1010", [])
    for flag in DOUBTFUL:
        row = make_row(time_s=make_times(1e-3), flags=("simulated", flag))
        assert (cases.interval(row), cases.doubtful(row), flag in FLAGS) == ("? 990.0–1010", [flag], True)
    flags = ("drift", "target_missed", "warmup_unsettled")
    assert cases.interval(make_row(time_s=make_times(1e-3), flags=flags, launches=5)) == "990.0–1010"
    assert cases.interval(make_row(time_s=make_times(1e-3), flags=(*flags, "state_flip"), launches=5)) == "? 990.0–1010"


def test_every_flag_is_explained_once_and_unknown_ones_are_not_invented() -> None:
    known = [f"{flag}: {FLAGS[flag].render()}" for flag in ("oversubscribed", "simulated")]
    assert explain(["simulated", "martian", "oversubscribed", "simulated"]) == known
    assert all(flag.islower() and flag.isidentifier() for flag in FLAGS)


BARRIER: dict[str, Any] = {
    "operation": "barrier", "dtype": "uint8", "redop": None, "count": 0, "algbw_bytes_per_s": None, "busbw_bytes_per_s": None,
    "ceiling": no_ceiling("barrier moves nothing"), "percent_of_ceiling": None,
}  # fmt: skip
GROUPS = {
    "count": 2, "ranks": 4, "p50_s": [1e-3, 1.1e-3], "busbw_bytes_per_s": [9.45e9, 9.41e9], "total_busbw_bytes_per_s": 18.86e9,
}  # fmt: skip


def titles(*rows: Any, **known: Any) -> list[str]:
    """The columns of a table of these rows or cases."""
    return [column.title for column in cases.shown_columns(PlanSummary.of(rows, **known))]


def test_a_barrier_has_microseconds_alone_and_dashes_beside_others() -> None:
    row = make_row(0, **BARRIER)
    assert titles(row) == ["operation", "backend", "time µs", "95 % interval", "wrong", "flags"]
    assert (cases.name_of(row), cases.value_of(row, "in_place")) == ("barrier", "–")
    columns = {column.title: column.text(row) for column in cases.shown_columns(PlanSummary.of([row, make_row()]))}
    assert [columns[title] for title in ("size", "dtype", "algbw GB/s", "busbw GB/s", "of expected", "limited by")] == [
        "–", "–", "–", "–", "–", "barrier moves nothing",
    ]  # fmt: skip


def test_groups_have_columns_for_each_and_for_all_or_dashes() -> None:
    row = make_row(group="MOD 2", groups=GROUPS)
    texts = {column.title: column.text(row) for column in cases.shown_columns(PlanSummary.of([row]))}
    assert (texts["each group GB/s"], texts["all groups GB/s"]) == ("9.41–9.45", "18.9")
    assert cases.format_groups(row) == "2 groups of 4 ranks: 9.41–9.45 GB/s each, 18.9 GB/s in total"
    assert "each group GB/s" not in titles(make_row(), make_row(group="0-1"))
    row = make_row(group="MOD 2", groups={"count": 2, "ranks": 4, "busbw_bytes_per_s": None, "total_busbw_bytes_per_s": None})
    texts = {column.title: column.text(row) for column in cases.shown_columns(PlanSummary.of([row]))}
    assert (texts["each group GB/s"], texts["all groups GB/s"]) == ("–", "–")
    assert cases.format_groups(row) == "2 groups of 4 ranks"


@pytest.mark.parametrize(
    "groups", [{}, {"count": "x"}, {"busbw_bytes_per_s": 3}, {"busbw_bytes_per_s": ["x", None], "total_busbw_bytes_per_s": "y"}]
)
def test_groups_that_a_stored_row_has_no_numbers_of_are_none(groups: dict[str, Any]) -> None:
    row = make_row(groups=groups)
    assert (cases.group_rates(row), cases.each_group(row), cases.format_groups(row)) == (([], None), "–", "")


def test_traffic_streams_and_groups_are_reported_where_they_differ_else_above_the_table() -> None:
    rows = [make_row(traffic=traffic, streams=k, group=g) for traffic, k, g in (("even", 1, "all"), ("skew 4", 4, "MOD 2"))]
    assert {"traffic", "streams", "group"} <= set(titles(*rows))
    assert not {"traffic", "streams", "group"} & set(titles(rows[1]))
    facts = [cases.same_for_all(PlanSummary.of([row])) for row in rows]
    assert "even traffic · 1 stream" in facts[0]
    assert "traffic skew 4 · 4 streams · split MOD 2" in facts[1]


def test_cases_know_their_groups_before_the_first_row() -> None:
    plan = PlanSummary.of([make_case(split=Split("MOD", 2))], ranks=4, nodes=1)
    assert plan.some("group") == ["MOD 2"]
    assert PlanSummary.of([make_case(operation="p2p_latency")], ranks=4).some("group") == ["0-2,1-3"]
    assert PlanSummary.of([make_case(operation="p2p_latency")], ranks=1).some("group") == []
    assert PlanSummary.of([make_case(split=Split("DIV", 8))], ranks=4).some("group") == ["all"]


@pytest.mark.parametrize(("percent", "kind", "limit", "model", "text"), [
    (0.04, "network", "NIC", "ring", "<0.1 %"), (0.06, "network", "NIC", "ring", "0.1 %"), (101.0, "network", "NIC", "bound", "101 %"),
    (103.0, "network", "NIC", "bound", "above the hard limit: its inputs are doubtful"), (103.0, "network", "NIC", "ring", "103 %"),
    (101.0, "measured", "memory copy", "ring", "faster than measured reference"),
])  # fmt: skip
def test_more_than_the_whole_means_something_else_for_each_kind_of_limit(percent, kind, limit, model, text):
    assert cases.share(percent, Ceiling(kind, 1e9, limit, model)) == text


ALL_NICS = {f"mlx5_{number}" for number in range(8)}
SLOTS = {nic.address for nic in dgx().nics}
EIGHT = NicLimit(ports=((8, 400e9),))
FOUR = NicLimit(ports=((4, 200e9),))


def nvlink(count: int, gigabytes: float = 25, **more: object) -> GpuLinkLimit:
    """NVLinks of a GPU."""
    return GpuLinkLimit(link="NVLink", count=count, bytes_per_s=gigabytes * 1e9, **more)  # type: ignore[arg-type]


def tcp(interface: str) -> NicLimit:
    """One interface of 1 Gb/s."""
    return NicLimit(ports=((1, 1e9),), interface=interface)


@pytest.mark.parametrize(("machine", "part", "parts"), [
    (dgx(), EIGHT, ALL_NICS), (dgx(), EIGHT.of(fabric=2.0), ALL_NICS), (dgx(), EIGHT.of(shared_by=3, host="node7"), ALL_NICS),
    (dgx(), nvlink(18, nvls=True), {f"{gpu.key}>switch" for gpu in dgx().gpus}),
    (dgx(), nvlink(18, 250), set()),
    (dgx(), FOUR, set()),
    (dgx(), PcieLimit(generation=5, lanes=16, gpus=8), {gpu.address for gpu in dgx().gpus}),
    (mesh(), nvlink(12), {f"0000:03:00.0>0000:{bus}:00.0" for bus in ("43", "83", "c3")}),
    (mesh(), nvlink(4, way="pair"), {"0000:03:00.0>0000:43:00.0"}),
    (pcie_box(), PcieLimit(generation=4, lanes=8), {"0000:82:00.0"}),
    (pcie_box(), BridgeLimit(address="0000:01:00.0"), {"0000:01:00.0"}),
    (pcie_box(), BridgeLimit(address="0000:ff:00.0"), set()), (laptop(), tcp("enp2s0"), {"enp2s0"}),
    (laptop(), tcp("docker0"), {"docker0"}), (Machine(), FOUR, set()), (Machine(), nvlink(18), set()),
])  # fmt: skip
def test_parts_of_a_ceiling_and_devices(machine: Machine, part: LimitPart, parts: set[str]) -> None:
    assert limiting_parts(machine, [part]) == parts


def test_slots_that_hold_their_nics_back() -> None:
    machine = dgx()
    narrow = tuple(replace(device, link=replace(device.link, width=4)) if device.address in SLOTS else device for device in machine.pci)
    part = EIGHT.of(slots=(PcieLimit(generation=5, lanes=4),))
    assert limiting_parts(replace(machine, pci=narrow), [part]) == ALL_NICS | SLOTS
    assert limiting_parts(machine, [part]) == set()


def read_back(values: dict[str, object]) -> Ceiling:
    """The ceiling of a row that stores these values."""
    found = row_from_json({**make_row().as_json(), "ceiling": values}).ceiling
    assert found is not None
    return found


@pytest.mark.parametrize(
    "values", [{"limited_by": "NIC 4×100 Gb/s"}, {"limited_by_parts": [{"kind": "light_beam"}]}, {"limited_by_parts": 7}]
)
def test_a_row_of_another_version_has_no_parts(values: dict[str, object]) -> None:
    """Only the text is known; nothing is marked."""
    assert read_back({"kind": "topology", "bytes_per_s": 50e9, "limited_by": "", **values}).limited_by_parts == ()


@pytest.mark.parametrize("operation", ["allreduce", "alltoall", "sendrecv", "p2p"])
@pytest.mark.parametrize(("machine", "nodes"), [(dgx(), 1), (dgx(), 2), (mesh(), 1), (mesh(), 2), (pcie_box(), 1), (pcie_box(), 2)])
def test_every_model_is_found(machine: Machine, nodes: int, operation: str) -> None:
    found = ceilings(operation, Job((node_of(machine),) * nodes))
    assert found.bound is not None
    for ceiling in (found.ring, found.bound):
        assert ceiling is None or limiting_parts(machine, ceiling.limited_by_parts)
        assert ceiling is None or read_back(ceiling.as_json()) == ceiling
