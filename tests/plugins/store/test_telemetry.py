"""GPU telemetry and the conditions of cases, as a store keeps them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from collbench.plugins.store.database import open_store
from collbench.plugins.store.folders import read_folder, result_of
from collbench.plugins.store.writing import Writer, sync
from collbench.results.row import Row
from tests.plugins.store.dashboards.fleet import run_folder
from tests.results.rows import make_row

STARTED = datetime(2026, 11, 1, 2, 0, tzinfo=UTC)


def event(at_s: float, hosts: Any) -> dict[str, Any]:
    return {"kind": "telemetry", "case": 0, "utc": (STARTED + timedelta(seconds=at_s)).isoformat(), "hosts": hosts}


def sample(mhz: float, *slowed_by: str, watts: float = 500.0, celsius: float = 60.0) -> dict[str, Any]:
    return {"monotonic_s": 7.0, "gpus": {"g0": {"sm_mhz": mhz, "power_w": watts, "temperature_c": celsius, "slowed_by": list(slowed_by)}}}


def test_the_samples_of_a_case_are_summarized(tmp_path: Path) -> None:
    samples = [sample(1900), sample(1400, "heat", watts=700.0), sample(1800, celsius=71.0), sample(1700)]
    folder = run_folder(tmp_path / "run", [make_row()], STARTED, (event(9.0, {"a": samples, "b": samples[:1]}),), hosts=["a", "b"])
    database = open_store(str(tmp_path / "runs.db"), write=True)
    for _ in range(2):  # a changed run is read again, and replaces what was there
        assert not sync(Writer(database), [tmp_path]).refused
        found = database.rows(text("SELECT node, gpu, ended_s, samples, sm_mhz, power_w, temperature_c, throttled FROM telemetry_history"))
        ended_s = STARTED.timestamp() + 9
        assert sorted(found) == [("a", "g0", ended_s, 4, 1750.0, 700.0, 71.0, 0.25), ("b", "g0", ended_s, 1, 1900.0, 500.0, 60.0, 0.0)]
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(run | {"note": "changed"}))
    database.close()


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from([0, -1, 7, 1.5, 1e99, 2**70, "", "a\0b", "2026-11-21", float("nan")]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["monotonic_s", "gpus", "a", "sm_mhz", "g\0"]), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_what_is_not_telemetry_is_left_out(tmp_path_factory: Any, hosts: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    run_folder(folder / "run", [], STARTED, (event(1.0, hosts), {"kind": "telemetry", "utc": hosts, "hosts": {"a": [sample(1)]}}))
    for _, columns, host in read_folder(folder / "run").parts:
        assert "\0" not in host and "\0" not in columns["gpu"]
        assert all(columns[name] is None or abs(columns[name]) <= 1e6 for name in ("sm_mhz", "power_w", "temperature_c"))


def figures_of(row: Row, started_s: float | None = 100.0) -> tuple[Any, ...]:
    figures = result_of(row, started_s).figures
    return figures["ended_s"], figures["stolen"], figures["preempted"]


def test_the_conditions_of_a_case_are_kept() -> None:
    assert figures_of(make_row(evidence={"at_s": [0.5, 1.5], "stolen": 0.0, "preempted": 0})) == (101.5, 0.0, 0)
    assert figures_of(make_row(evidence={"at_s": [0, 2]}), None) == (None, None, None)
    for junk in (None, [], [1.0], "x", [0, "1"], [0, float("nan")], {}, [0, True]):
        assert figures_of(make_row(evidence={"at_s": junk, "stolen": junk, "preempted": junk})) == (None, None, None)
