"""Run folders of a small fleet for dashboards: three nights of four nodes, a run with GPU telemetry, a hunt and a verdict."""

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from collbench.results.folder import RunFolder
from collbench.results.row import Row
from tests.results.rows import make_row, make_times
from tests.stored import stored_reports

ROOT = Path(__file__).parents[4]
NODES = ("n1", "n2", "n3", "n4")
SLOW = "n3"
SIZE = 64 << 20
NIGHTS = 3
GPU = "0000:18:00.0"


def fleet(folder: Path, now: datetime | None = None) -> Path:
    now = now or datetime.now(UTC)
    for night in range(NIGHTS):
        for place, node in enumerate(NODES):
            started = now - timedelta(days=NIGHTS - 1 - night, hours=2, minutes=place)
            rate = 42e9 * (0.7 if node == SLOW else 1) * (1 + 0.01 * night)
            run_folder(folder / f"night-{night}-{node}", rows(rate), started, hosts=[node])
    _with_telemetry(folder / "gpus", now - timedelta(hours=1))
    _hunt(folder / "hunt", now - timedelta(minutes=50))
    (folder / "gate").mkdir()
    _verdict(folder / "gate", now)
    return folder


def rows(rate: float) -> list[Row]:
    """Return an all-reduce of 8 B and one of 64 MiB at this bus bandwidth."""
    time_s = SIZE * 1.5 / rate
    evidence = {"at_s": [0.5, 1.5], "stolen": 0.01, "preempted": 3}
    probe = {"before": 1.1e-5, "after": 1.2e-5}
    large = make_row(
        SIZE, time_s=make_times(time_s), busbw_bytes_per_s=rate, percent_of_ceiling=100 * rate / 50e9, evidence=evidence, canary_s=probe
    )
    return [make_row(8, time_s=make_times(9e-6), busbw_bytes_per_s=1e6, percent_of_ceiling=None, flags=("drift",)), large]


def run_folder(path: Path, of_rows: list[Row], started: datetime, events: tuple[Mapping[str, Any], ...] = (), **run: Any) -> Path:
    made = RunFolder.create(path, "allreduce", {"started_utc": started.isoformat(), "command": ["collbench", "allreduce"], **run})
    for row in of_rows:
        made.append(row, {})
    made.finish(exit_code=0)
    run_json = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run_json | {"finished_utc": (started + timedelta(seconds=9)).isoformat()}))
    (path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    return path


def _with_telemetry(path: Path, started: datetime) -> None:
    gpus = {GPU: {"sm_mhz": 1400, "memory_mhz": 2600, "power_w": 512.5, "temperature_c": 61, "slowed_by": ["power cap"]}}
    hosts = {node: [{"monotonic_s": 1000.0 + place, "gpus": gpus} for place in range(3)] for node in ("n1", "n2")}
    event = {"kind": "telemetry", "case": 0, "utc": (started + timedelta(seconds=1.5)).isoformat(), "hosts": hosts}
    run_folder(path, rows(42e9), started, (event,), hosts=["n1", "n2"])


def _hunt(path: Path, started: datetime) -> None:
    shutil.copytree(ROOT / "reports/hunt-host", path)
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {"started_utc": started.isoformat(), "finished_utc": started.isoformat()}))


def _verdict(folder: Path, now: datetime) -> None:
    verdict = json.loads((stored_reports() / "gate-trials/group-1/verdict.json").read_text())
    (folder / "verdict.json").write_text(json.dumps(verdict | {"judged_on": now.date().isoformat()}))
