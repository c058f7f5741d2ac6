"""OpenMetrics that its own parser reads back, and the older text format's parser, which node_exporter has, as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_text

from collbench.analysis.launches import read_all
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.material import Material
from collbench.report.runs import openmetrics_text
from collbench.results.folder import RunFolder
from collbench.results.row import Times
from tests.results.rows import make_row, make_times, not_measured, store


def written(*folders: Path) -> str:
    return openmetrics_text(Material(read_all(folders), Path()))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name the labels and values that both parsers find; they must agree."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in as_openmetrics(text):  # type: ignore[no-untyped-call]
        assert family.type == "gauge"
        found[family.name] = [(each.labels, each.value) for each in family.samples]
    assert {family.name: [(each.labels, each.value) for each in family.samples] for family in as_text(text)} == found
    return found


def test_a_row_with_all_its_labels(tmp_path: Path) -> None:
    row = make_row(1024, time_s=make_times(2e-6), hard_bound=Ceiling("network", 60e9, "NIC", "bound"), window=None, algorithm="tree")
    found = samples(written(store(tmp_path / "run", [row])))
    ((labels, time),) = found["collbench_time_seconds"]
    assert time == 2e-6
    assert labels == {
        "operation": "allreduce", "backend": "nccl", "device": "cuda", "dtype": "float32", "redop": "sum", "mode": "isolated",
        "placing": "out of place", "buffers": "fixed", "group": "all", "ranks": "4", "nodes": "1", "algorithm": "tree",
        "size_bytes": "1024",
    }  # fmt: skip
    single = {name: values[0][1] for name, values in found.items() if len(values) == 1}
    assert single["collbench_time_interval_low_seconds"] == pytest.approx(1.98e-6)
    assert single["collbench_busbw_bytes_per_second"] == 42e9
    assert single["collbench_of_ceiling_ratio"] == 0.84
    assert (single["collbench_measured"], single["collbench_doubtful"], single["collbench_wrong_elements"]) == (1, 0, 0)
    assert (single["collbench_samples"], single["collbench_launches"], single["collbench_run_complete"]) == (200, 1, 1)
    assert found["collbench_ceiling_bytes_per_second"][0][0]["limited_by"] == "NIC 4×100 Gb/s"
    assert found["collbench_hard_bound_bytes_per_second"][0][1] == 60e9


def test_what_is_unknown_has_no_sample(tmp_path: Path) -> None:
    inf = float("inf")
    rows = [
        not_measured("no memory", size_bytes=8),
        make_row(16, time_s=Times(2e-6, None, None, 1e-6, 3e-6, inf, inf), percent_of_ceiling=None, wrong=None, busbw_bytes_per_s=inf),
        make_row(32, ranks=1, busbw_bytes_per_s=0.0),
    ]
    found = samples(written(store(tmp_path / "run", rows)))
    assert {labels["size_bytes"]: value for labels, value in found["collbench_measured"]} == {"8": 0, "16": 1, "32": 1}
    assert {labels["size_bytes"] for labels, _ in found["collbench_time_seconds"]} == {"16", "32"}
    assert [labels["size_bytes"] for labels, _ in found["collbench_time_interval_low_seconds"]] == ["32"]
    assert [labels["size_bytes"] for labels, _ in found["collbench_wrong_elements"]] == ["32"]
    assert "collbench_busbw_bytes_per_second" not in found


def test_wrong_data_and_one_rank_have_no_share_and_a_case_that_occurs_twice_is_one_series(tmp_path: Path) -> None:
    found = samples(written(store(tmp_path / "run", [make_row(8, wrong=3), make_row(16), make_row(32, ranks=1, wrong=None)])))
    assert [labels["size_bytes"] for labels, _ in found["collbench_of_ceiling_ratio"]] == ["16"]
    assert [value for _, value in found["collbench_wrong_elements"]] == [3, 0]
    found = samples(written(store(tmp_path / "run", [make_row(8, time_s=make_times(1e-6)), make_row(8, time_s=make_times(2e-6))])))
    assert [value for _, value in found["collbench_time_seconds"]] == [2e-6]


def test_several_runs_have_their_names_and_their_ends(tmp_path: Path) -> None:
    done = store(tmp_path / "done", [make_row(8)])
    broken = RunFolder.create(tmp_path / "broken", "allreduce", {})
    broken.append(make_row(8), {})
    found = samples(written(done, broken.path))
    assert [labels["run"] for labels, _ in found["collbench_time_seconds"]] == ["done", "broken"]
    assert found["collbench_run_complete"] == [({"run": "done"}, 1), ({"run": "broken"}, 0)]
    assert [labels for labels, _ in found["collbench_run_finished_timestamp_seconds"]] == [{"run": "done"}]
    assert ({"severity": "broken_off"}, 1) in found["collbench_concerns"]
    assert ({"severity": "wrong_data"}, 0) in found["collbench_concerns"]


def test_hostile_names_stay_within_their_quotes(tmp_path: Path) -> None:
    evil = 'x"} 1\ncollbench_time_seconds{a="\\\u202e\ud800' + "y" * 500
    found = samples(written(store(tmp_path / "run", [make_row(8, backend=evil, ceiling=Ceiling(evil, 1e9, evil, evil))])))
    ((labels, _),) = found["collbench_time_seconds"]
    assert labels["backend"].startswith('x"} 1?collbench_time_seconds{a="\\?\ufffdy') and len(labels["backend"]) == 200
