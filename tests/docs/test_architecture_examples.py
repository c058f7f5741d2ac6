"""ARCHITECTURE.md is true: the path of a row names functions that exist, and each example works once it is added as the page says."""

import inspect
import json
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.command import BIN, Finished, run
from tests.conftest import ROOT

pytestmark = pytest.mark.system

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:python|toml)\n# (\S+?)(?:, (\w[\w ]*))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"^\| \d+ \| `([\w/]+)` \| .* \| `([\w.]+)\((.*)\)` \|$", PAGE, re.MULTILINE)
NUMACTL = "".join(
    f"node {node} cpus: {cpus}\nnode {node} size: {megabytes} MB\n" for node, cpus, megabytes in ((0, "0 1 2 3", 64215), (1, "4 5", 64507))
)


def add(site: Path, name: str, place: str, text: str) -> None:
    """Add a block to the copy of the package: as a new file, or at the place that its first line names."""
    file = site / name
    before, (how, _, what) = file.read_text(encoding="utf-8") if place else "", place.partition(" ")
    if place == "at the end":
        before += f"\n{text}"
    elif place:
        marks = {
            "in": rf"^{what}\b[^=\n]*= [({{]\n?",
            "before": rf"^(?={what}\b[^=\n]*= )",
            "with": r"^(?=from collbench)",
            "after": rf"^ +{what}: .*\n",
        }
        after = re.compile(marks[how], re.MULTILINE).search(before)
        assert after, (name, place)
        before = f"{before[: after.end()]}{text}{before[after.end() :]}"
    assert bool(place) == file.exists(), name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before or text, encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package and all examples."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "collbench", site / "collbench", ignore=shutil.ignore_patterns("__pycache__"))
    for block in BLOCKS:
        add(site, *block)
    return site


def collbench(site: Path, folder: Path, *argv: str) -> Finished:
    """Run the copy to its end, successfully."""
    done = run(folder, *argv, env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def python(site: Path, folder: Path, code: str) -> str:
    """Return what Python prints with the copy of the package, successfully."""
    path = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    words = [BIN / "python", "-c", code]
    done = subprocess.run(words, cwd=folder, env=path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_path_and_the_examples_of_the_page_are_short_and_true() -> None:
    assert 8 <= len(STEPS) <= 12
    for module, name, parameters in STEPS:
        found = import_module(f"collbench.{module.replace('/', '.')}")
        for part in name.split("."):
            found = getattr(found, part)
        assert [each for each in inspect.signature(found).parameters if each != "self"] == parameters.split(", "), name
    for section in PAGE.split("\n### ")[1:]:
        files = {name for name, _, _ in BLOCKS if f"\n# {name}" in section.partition("\n## ")[0]}
        most = 5 if section.startswith("A plug-in") else 2  # a plug-in is a folder, its test, and its name in the list
        assert 1 <= len(files) <= most, section.partition("\n")[0]


def test_the_examples_follow_the_style_of_the_project(site: Path) -> None:
    new = [site / name for name, place, _ in BLOCKS if not place and not name.startswith("tests/")]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([BIN / "ruff", *command, *config, *new], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_operation_is_measured_and_verified(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = collbench(site, tmp_path, "mirror", "--backend", "mpi", "--ranks", "2", "--sizes", "8,64K", "--format", "json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["operation"], row["size_bytes"], row["wrong"], row["checked"], row["na"]) for row in rows} == {
        ("mirror", 8, 0, 1, None), ("mirror", 65536, 0, 1, None),
    }  # fmt: skip
    assert re.search(r"\bmirror\b", collbench(site, tmp_path, "help", "operations").stdout)
    planned = collbench(site, tmp_path, "run", "full", "--backend", "mpi", "--ranks", "2", "--dry-run", "--format", "csv").stdout
    assert re.search(r"\bmirror\b", planned)


def test_the_backend_is_listed_and_its_rows_are_verified(site: Path, tmp_path: Path) -> None:
    assert re.search(r"^ *pipe +available +named pipes", collbench(site, tmp_path, "backends").stdout, re.MULTILINE)
    done = collbench(site, tmp_path, "p2p", "--backend", "pipe", "--sizes", "8,1M", "--window", "3", "--format", "json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["operation"], row["size_bytes"], row["wrong"], row["checked"]) for row in rows if row["na"] is None} == {
        (operation, size, 0, 1) for operation in ("p2p_latency", "p2p_bandwidth") for size in (8, 1 << 20)
    }
    assert {row["na"] for row in rows if row["operation"] == "p2p_bidirectional"} == {
        "pipe supports pairs of ranks, in one direction at a time"
    }


def test_the_reader_gives_a_machine(site: Path, tmp_path: Path) -> None:
    (tmp_path / "numactl.txt").write_text(f"available: 2 nodes (0-1)\n{NUMACTL}node distances:\nnode   0   1\n  0:  10  21\n")
    done = collbench(site, tmp_path, "probe", "--from", "numactl.txt", "--format", "json")
    (machine,) = json.loads(done.stdout)["machines"]
    assert [(node["id"], node["cpus"], node["memory_bytes"]) for node in machine["numa_nodes"]] == [
        (0, "0-3", 64215 << 20), (1, "4-5", 64507 << 20),
    ]  # fmt: skip


def test_the_writer_prints_a_run_and_a_stored_one(site: Path, tmp_path: Path) -> None:
    typed = ["allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,64K", "--format", "gnuplot", "--out", "run"]
    printed = collbench(site, tmp_path, *typed).stdout
    lines = printed.splitlines()
    assert lines[0] == "# allreduce simulated" and [line.split()[0] for line in lines[1:]] == ["8", "65536"]
    assert all(float(figure) > 0 for line in lines[1:] for figure in line.split())
    assert collbench(site, tmp_path, "report", "run", "--format", "gnuplot").stdout == printed
    assert collbench(site, tmp_path, *typed[:-4]).stdout.startswith("cpu · ")  # the default stays


def test_the_kind_of_figure_is_drawn(site: Path, tmp_path: Path) -> None:
    collbench(site, tmp_path, "plot", str(ROOT / "reports/first-run"), "--kind", "samples", "--out", "samples.svg")
    drawn = (tmp_path / "samples.svg").read_text()
    assert ">samples<" in drawn and 'id="line 1"' in drawn  # a line for each backend


def test_the_metric_is_in_every_form(site: Path, tmp_path: Path) -> None:
    typed = ["allreduce", "--backend", "simulated", "--ranks", "2", "--sizes", "8", "--out", "run", "--format", "csv"]
    assert "mean_queue_s" in collbench(site, tmp_path, *typed).stdout.splitlines()[0].split(",")
    assert "sender's queue. Unit: seconds." in collbench(site, tmp_path, "explain", "mean_queue_s").stdout
    show = "print(frame.attrs['columns']['mean_queue_s'], frame['mean_queue_s'].dtype)"
    described = python(site, tmp_path, f"import collbench; frame = collbench.read('run').frame(); {show}")
    assert described == "The mean time that a message waits in the sender's queue. Unit: seconds. float64\n"
    (row,) = map(json.loads, collbench(site, tmp_path, "report", "run", "--format", "jsonl").stdout.splitlines())
    assert row["mean_queue_s"] is None
    table = collbench(site, tmp_path, "report", "run", "--columns", "size,mean_queue_s").stdout
    assert re.search(r"^size  mean_queue µs$", table, re.MULTILINE)
    assert "mean_queue" not in collbench(site, tmp_path, "report", "run").stdout


def test_the_evidence_of_each_process_is_stored_with_the_row(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    collbench(site, tmp_path, "allreduce", "--backend", "mpi", "--ranks", "2", "--sizes", "8", "--out", "run")
    (row,) = map(json.loads, collbench(site, tmp_path, "report", "run", "--format", "json").stdout.splitlines())
    assert len(row["evidence"]["page_faults"]) == 2 and all(faults >= 0 for faults in row["evidence"]["page_faults"])


def test_the_plug_in_is_listed_and_its_test_passes(site: Path, tmp_path: Path) -> None:
    assert re.search(r"^clock +collbench .* commands clock", collbench(site, tmp_path, "plugins").stdout, re.MULTILINE)
    path = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    words = [BIN / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", site, site / "tests/plugins/clock/test_clock.py"]
    done = subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert collbench(site, tmp_path, "clock", "--out", "run").stdout == "run folder: run\n"
    assert re.search(r"^ *monotonic +\d+", collbench(site, tmp_path, "report", "run").stdout, re.MULTILINE)
    assert collbench(site, tmp_path, "help", "clock").stdout.count("collbench clock") >= 2  # its examples


def test_the_plug_in_has_its_figure_in_json_a_data_frame_and_a_picture(site: Path, tmp_path: Path) -> None:
    collbench(site, tmp_path, "clock", "--out", "run")
    stored = [json.loads(line) for line in (tmp_path / "run/clock.jsonl").read_text().splitlines()]
    shown = [json.loads(line) for line in collbench(site, tmp_path, "report", "run", "--format", "jsonl").stdout.splitlines()]
    assert shown == [{**line, "step_ratio": line["step_s"] / 1e-9} for line in stored] and "step_ratio" not in stored[0]
    frame = python(site, tmp_path, "import collbench; print(collbench.read('run').clocks().to_dict('list'))")
    assert "'clock': ['monotonic', 'perf_counter'], 'step_s': [" in frame
    table = collbench(site, tmp_path, "report", "run", "--columns", "clock,step_ratio").stdout.splitlines()
    assert table[2].split() == ["clock", "step_ratio"]
    collbench(site, tmp_path, "report", "run", "--html", "page.html")
    picture = (tmp_path / "page.html").read_text().partition('<figure id="clock-0"')[2].partition("</figure>")[0]
    assert "<svg" in picture and "perf_counter" in picture


def test_a_run_of_the_plug_in_without_records_has_one_clear_sentence(site: Path, tmp_path: Path) -> None:
    collbench(site, tmp_path, "clock", "--out", "run")
    for text in ("", '{"clock": 3}\n'):  # nothing was measured; no line can be read
        (tmp_path / "run/clock.jsonl").write_text(text)
        done = run(tmp_path, "report", "run", "--html", "page.html", env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
        assert done.returncode == 2 and done.stderr.endswith("collbench: --html: these runs have no result for a page\n")


def test_the_rule_has_a_finding_and_a_page(site: Path, tmp_path: Path) -> None:
    (tmp_path / "node/proc").mkdir(parents=True)
    (tmp_path / "node/sys").mkdir()
    codes = []
    for options in ("ro quiet", "ro quiet pcie_aspm=force"):
        (tmp_path / "node/proc/cmdline").write_text(f"{options}\n")
        done = run(tmp_path, "doctor", "--from", "node", "--format", "json", env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
        codes.append({each["code"] for each in json.loads(done.stdout)["findings"]})
    assert codes[1] - codes[0] == {"CB2499"}
    assert "pcie_aspm=force" in collbench(site, tmp_path, "explain", "CB2499").stdout
