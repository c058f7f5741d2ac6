"""A check that passes where every byte arrived right: as it is written, as ReFrame reads it, and on a real Slurm."""

import ast
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.plugins.deploy.job import job_of
from collbench.plugins.deploy.kinds.reframe import KIND, system
from tests.cli.command import BIN, ROOT, environment
from tests.plugins.deploy.recorded import program
from tests.plugins.deploy.texts import HOSTILE
from tests.testbeds import SlurmBed
from tests.testbeds.bed import Finished

REFRAME = BIN / "reframe"
SITE = ROOT / "tests/slurm/site.py"


def emitted(*command: str, **said: Any) -> str:
    return KIND.render(job_of(KIND, command, {name.replace("_", "-"): value for name, value in said.items()}))


def variables(text: str) -> dict[str, Any]:
    (check,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in check.body if isinstance(node, ast.Assign)}


def class_name(name: str) -> str:
    (found,) = (node.name for node in ast.parse(emitted("allreduce", name=name)).body if isinstance(node, ast.ClassDef))
    return found


def reframe(folder: Path, *words: str, env: Mapping[str, str] | None = None, bed: SlurmBed | None = None, site: Path = SITE) -> Finished:
    """Run ReFrame on the check in the folder; it writes nothing elsewhere."""
    quiet = {
        "RFM_ENABLE_RESULTS_STORAGE": "n", "RFM_SAVE_LOG_FILES": "n", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "HOME": str(folder),
    }  # fmt: skip
    line = [str(REFRAME), "-c", str(folder / "check.py"), "-C", str(site), "--prefix", str(folder), "--nocolor", *words]
    actual = environment({**quiet, **(env or {})})
    if bed:
        return bed.call(line, timeout=120, env=actual)
    return subprocess.run(line, cwd=folder, env=actual, capture_output=True, text=True, timeout=60, check=False)


class TestTheCheck:
    def test_it_has_the_settings_of_the_job_and_a_class_that_shadows_nothing(self) -> None:
        text = emitted("allreduce", nodes=4, gpus_per_node=8, cpus_per_rank=6, minutes=45, system="*:gpu", module=("cuda/13", "ompi"))
        wanted = {
            "num_tasks": 32, "num_tasks_per_node": 8, "num_gpus_per_node": 8, "num_cpus_per_task": 6, "time_limit": "45m",
            "valid_systems": ["*:gpu"], "modules": ["cuda/13", "ompi"], "exclusive_access": True,
        }  # fmt: skip
        assert {name: value for name, value in variables(text).items() if name in wanted} == wanted
        assert not {"num_gpus_per_node", "num_cpus_per_task", "modules", "prerun_cmds"} & set(variables(emitted("allreduce")))
        actual = variables(emitted("allreduce", env=("A=$(touch x) {{ y }}",)))
        assert actual["prerun_cmds"] == ["export 'A=$(touch x) {{ y }}'"] and "env_vars" not in actual
        classes = {
            "collbench": "Collbench", "night-2.x": "CollbenchNight2X", "Path": "CollbenchPath", "None": "CollbenchNone",
            "1st": "Collbench1st", "collbench-gpu": "CollbenchGpu",
        }  # fmt: skip
        assert {name: class_name(name) for name in classes} == classes

    def test_the_rows_are_read_from_the_run_folder_of_a_command_that_measures(self) -> None:
        actual = variables(emitted("pairs", "--out", "/x/a b", program="/opt/c b"))
        assert actual["executable_opts"] == ["pairs", "--out", "'/x/a b'"] and "keep_files" not in actual
        assert actual["postrun_cmds"][1] == "'/opt/c b' report '/x/a b' --format json >rows.jsonl"
        text = emitted("doctor")
        assert variables(text)["postrun_cmds"] == ["echo $? >exit_code"] and "rows" not in text

    @pytest.mark.parametrize("text", ["", "-x", "a b", 'a"', "a,b", "a\n", "{{ x }}"])
    def test_invalid_systems(self, text: str) -> None:
        with pytest.raises(UsageError, match="system of ReFrame"):
            system(text)


HERE = """site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "main", "scheduler": "local", "launcher": "local", "environs": ["builtin"]}]}],
    "environments": [{"name": "builtin"}],
    "general": [{"poll_rate_max": 20, "use_login_shell": False}],
}
"""
# A double of collbench: stores its arguments and its variable; as `report` it prints rows
DOUBLE = """#!/bin/bash
case $1 in
    report) [ ! -e "$2/rows" ] || cat "$2/rows" ;;
    *)
        here=$(dirname "$0")
        mkdir run
        printf '%s\\0' "$@" >run/words
        printf %s "$A" >run/variable
        cp "$here/rows" run/rows
        [ ! -e "$here/error" ] || { cat "$here/error" >&2; exit 4; }
        ;;
esac
"""
ROW = {
    "operation": "allreduce", "size_bytes": 1024, "backend": "gloo", "dtype": "float32", "redop": "sum", "mode": "isolated", "root": None,
}  # fmt: skip
RIGHT = {**ROW, "wrong": 0, "busbw_bytes_per_s": 2.5e9}


@pytest.mark.long
class TestReFrameItself:
    """The check in ReFrame on this machine, with a double of collbench."""

    def played(self, folder: Path, rows: list[dict[str, Any]], says: str = "") -> tuple[Finished, dict[str, Any]]:
        (folder / "bin").mkdir()
        double = program(folder, "bin/collbench", DOUBLE)
        (folder / "bin/rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if says:
            (folder / "bin/error").write_text(says)
        (folder / "check.py").write_text(emitted("allreduce", *HOSTILE, nodes=1, program=str(double), env=("A=$(touch x) {0} 'y'",)))
        (folder / "here.py").write_text(HERE)
        done = reframe(folder, "-r", "--keep-stage-files", "--report-file", str(folder / "report.json"), site=folder / "here.py")
        (run,) = json.loads((folder / "report.json").read_text())["runs"]
        (case,) = run["testcases"]
        return done, case

    def test_right_data_pass_and_their_rate_is_logged(self, tmp_path: Path) -> None:
        done, case = self.played(tmp_path, [RIGHT, {**ROW, "size_bytes": 8, "wrong": 0, "busbw_bytes_per_s": None}])
        assert done.returncode == 0, done.stdout
        (rate,) = case["perfvalues"].items()
        assert rate[0].endswith("allreduce_1024_gloo_float32_sum_isolated") and (rate[1][0], rate[1][4]) == (2.5, "GB/s")
        (run,) = tmp_path.glob("output/**/run")
        assert (run / "words").read_text().split("\0")[:-1] == ["allreduce", *HOSTILE, "--out", "run"]
        assert (run / "variable").read_text() == "$(touch x) {0} 'y'"
        assert not [path for path in tmp_path.rglob("*") if path.name in ("x", "injected")]

    @pytest.mark.parametrize(
        ("rows", "says", "why"),
        [([{**RIGHT, "wrong": 3}], "", "wrong data"), ([], "", "no rows"), ([RIGHT], "collbench: rank 1 {died}: see\n", "exit code 4 ")],
    )
    def test_anything_else_fails_with_the_reason(self, rows: list[dict[str, Any]], says: str, why: str, tmp_path: Path) -> None:
        done, case = self.played(tmp_path, rows, says)
        assert done.returncode == 1 and why in case["fail_reason"], done.stdout


@pytest.mark.system
def test_reframe_loads_it(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(emitted("allreduce", *HOSTILE, name="night", gpus_per_node=2, env=("A={{ b }}",)))
    done = reframe(tmp_path, "-l")
    assert done.returncode == 0 and "- CollbenchNight" in done.stdout and "Found 1 check(s)" in done.stdout, done.stdout + done.stderr
