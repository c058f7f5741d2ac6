"""ReFrame itself runs the check, on a real Slurm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import BIN
from tests.slurm.made_up import SLOWER, SLURM, Cluster, said, settings
from tests.testbeds.bed import Finished

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(200)]
PASSED, SKIPPED, FAILED = "pass", "skip", "fail"


def reframe(
    cluster: Cluster, folder: Path, env: Mapping[str, str] | None = None, **variables: object
) -> tuple[Finished, list[dict[str, Any]]]:
    own = {"baseline": cluster.good, "suite": cluster.suite, "launches": 1, "options": f"--expect {cluster.announced}", **variables}
    words = [word for name, value in own.items() for word in ("-S", f"CollbenchGate.{name}={value}")]
    check = ["-c", str(SLURM / "reframe" / "collbench_check.py"), "-C", str(Path(__file__).with_name("site.py"))]
    report = folder / "report.json"
    line = [str(BIN / "reframe"), *check, "--prefix", str(folder), "--report-file", str(report), "--nocolor", *words, "-r"]
    quiet = {"RFM_ENABLE_RESULTS_STORAGE": "n", "RFM_SAVE_LOG_FILES": "n", "TMPDIR": str(folder)}
    done = cluster.bed.call(line, timeout=120, env=settings({**quiet, **(env or {})}))
    (run,) = json.loads(report.read_text())["runs"]
    return done, sorted(run["testcases"], key=lambda case: str(case["name"]))


def test_without_suspects_one_job_is_enough(cluster: Cluster, tmp_path: Path) -> None:
    done, strikes = reframe(cluster, tmp_path)
    assert done.returncode == 0, said(done)
    assert [each["result"] for each in strikes] == [PASSED, SKIPPED, SKIPPED]
    (rate,) = strikes[0]["perfvalues"].values()
    measured, median, lower, upper, unit = rate[:5]
    assert measured == pytest.approx(median, rel=0.05) and 0.05 < median < 3
    assert (round(lower, 3), upper, unit) == (-0.048, None, "GB/s")  # 5 % more time is 4.8 % less rate


def test_a_regression_fails_in_the_third_strike(cluster: Cluster, tmp_path: Path) -> None:
    done, strikes = reframe(cluster, tmp_path, SLOWER)
    assert done.returncode == 1, said(done)
    assert [each["result"] for each in strikes] == [PASSED, PASSED, FAILED]
    assert "regression; " in strikes[2]["fail_reason"] and "allreduce 4 KiB simulated" in strikes[2]["fail_reason"]
    (rate,) = strikes[0]["perfvalues"].values()
    assert rate[0] == pytest.approx(rate[1] / 1.3, rel=0.05) and rate[2] is None  # a suspicion alone fails nothing


def test_no_verdict_fails(cluster: Cluster, tmp_path: Path) -> None:
    done, strikes = reframe(cluster, tmp_path, baseline="/nowhere")
    assert done.returncode == 1 and strikes[0]["result"] == FAILED and PASSED not in [each["result"] for each in strikes], said(done)
    assert "no verdict" in strikes[0]["fail_reason"]
