"""The phases of a case, and NVTX ranges around them: outside the timed loop, on every rank, and only if they are switched on."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.device.nvtx import open_ranges
from collbench.measuring.phases import Phases, nvtx_range
from collbench.results.reader import read_run
from tests.cli.command import ROOT, run
from tests.conftest import cannot

DOUBLE = Path(__file__).with_name("nvtx_double.py")
INJECTION = Path(__file__).with_name("nvtx_injection.c")
NAMES = ["set-up", "warm-up", "samples", "verification"]


def test_phases_of_the_same_name_are_joined_if_they_follow_one_another_and_failed_ones_are_not_recorded():
    found = Phases()
    for name in ("warm-up", "samples", "samples", "verification", "samples"):
        with found.record(name):
            pass
    with pytest.raises(ValueError, match="lost"), found.record("verification"):
        raise ValueError("lost")
    assert [phase.name for phase in found] == ["warm-up", "samples", "verification", "samples"]
    ends = [time for phase in found for time in (phase.began_s, phase.ended_s)]
    assert ends == sorted(ends)


def test_without_the_option_a_range_is_nothing_and_imports_nothing():
    assert nvtx_range("one") is nvtx_range("two")
    imported = "[name for name in ('nvtx', 'cupy', 'collbench.device.nvtx') if name in sys.modules]"
    code = f"import sys, collbench.measuring.session; print(*{imported})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def path_with(folder, **modules):
    """PYTHONPATH with a folder of modules, which come before those that are installed."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return f"{ROOT}{os.pathsep}{folder}"


def measure(folder, iterations, env, *more):
    """Measure one simulated case with --nvtx, and return stderr."""
    line = (
        "allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8", "-n", str(iterations), "--nvtx", "--out", f"run{iterations}",
    )  # fmt: skip
    done = run(folder, *line, *more, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def ranges(folder):
    """Of each process the ranges as the double noted them, as (depth, name), after a check that each one ends."""
    found = []
    for file in sorted(folder.glob("ranges.*")):
        names, depth = list[tuple[int, str]](), 0
        for line in file.read_text().splitlines():
            _, what, *rest = line.split("\t")
            if what == "push":
                assert rest[0] == "collbench"
                names.append((depth, rest[1]))
            depth += 1 if what == "push" else -1
        assert depth == 0
        found.append(names)
    return found


@pytest.mark.often
@pytest.mark.long
def test_every_case_and_phase_is_a_range_whatever_the_number_of_samples(tmp_path):
    (tmp_path / "modules").mkdir()
    env = {"PYTHONPATH": path_with(tmp_path / "modules", nvtx=DOUBLE.read_text()), "NVTX_DOUBLE": str(tmp_path / "ranges")}
    measure(tmp_path, 5, env, "--warmup", "3")
    (few,) = ranges(tmp_path)
    assert few[0] == (0, "allreduce 8 B on simulated (float32, sum)")
    assert [name for depth, name in few if depth == 1] == ["set-up", "warm-up", "warm-up", "samples", "verification"]
    for file in tmp_path.glob("ranges.*"):
        file.unlink()
    measure(tmp_path, 50, env, "--warmup", "3")
    assert ranges(tmp_path) == [few]
    (row,) = read_run(tmp_path / "run50").rows
    assert [name for name, *_ in row.evidence["phases"]] == NAMES


@pytest.mark.long
def test_without_a_package_the_error_has_the_remedy(tmp_path):
    missing = "raise ImportError('not installed')\n"
    env = {"PYTHONPATH": path_with(tmp_path, nvtx=missing, cupy=missing)}
    done = run(tmp_path, "allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8", "--nvtx", "--out", "run", env=env)
    assert (done.returncode, done.stderr.splitlines()) == (2, ["collbench: --nvtx needs a package for NVTX: pip install 'collbench[nvtx]'"])
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_both_ranks_of_a_real_run_have_the_ranges(tmp_path):
    (tmp_path / "modules").mkdir()
    env = {"PYTHONPATH": path_with(tmp_path / "modules", nvtx=DOUBLE.read_text()), "NVTX_DOUBLE": str(tmp_path / "ranges")}
    line = ("allreduce", "--backend", "gloo", "--ranks", "2", "--sizes", "8,1K", "-n", "5", "--nvtx", "--out", "run")
    done = run(tmp_path, *line, env=env)
    assert done.returncode == 0, done.stderr
    found = ranges(tmp_path)
    assert len(found) == 2
    assert all(sorted(name for depth, name in each if depth == 0) == sorted(
        f"allreduce {size} on gloo (float32, sum)" for size in ("8 B", "1 KiB")) for each in found)  # fmt: skip


@pytest.mark.long
def test_a_tool_that_nvtx_loads_sees_the_ranges(tmp_path):
    """NVTX itself loads the library that NVTX_INJECTION64_PATH names, as it loads that of Nsight Systems."""
    compiler = shutil.which("cc")
    if compiler is None or find_spec("nvtx") is None:
        cannot("no C compiler" if compiler is None else "the package nvtx is not installed: pip install 'collbench[nvtx]'")
    library = tmp_path / "injection.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, INJECTION], check=True, capture_output=True)
    measure(tmp_path, 5, {"NVTX_INJECTION64_PATH": str(library), "NVTX_SEEN": str(tmp_path / "seen")})
    seen = (tmp_path / "seen").read_text().splitlines()
    names = [line.removeprefix("push ") for line in seen if line.startswith("push ")]
    assert names[0] == "allreduce 8 B on simulated (float32, sum)"
    assert list(dict.fromkeys(names[1:])) == NAMES
    assert seen.count("pop") == len(names)


def test_ranges_go_through_cupy_where_the_package_is_missing(monkeypatch):
    noted = []
    double = SimpleNamespace(RangePush=noted.append, RangePop=lambda: noted.append("pop"))
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(nvtx=double)))
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=double))
    make = open_ranges()
    with pytest.raises(ValueError, match="lost"), make("outer"):
        with make("inner"):
            pass
        raise ValueError("lost")
    assert noted == ["outer", "inner", "pop", "pop"]
