"""`collbench plot`."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command import ROOT, run, run_here

RUN = "reports/first-run"


def test_a_figure_of_a_run(tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote bandwidth.pdf\n")
    assert (tmp_path / "bandwidth.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("size", "inches"), [("3.5in", (3.5, None)), ("89mm", (89 / 25.4, None)), ("20x10cm", (20 / 2.54, 10 / 2.54))])
def test_sizes(size: str, inches: tuple[float, float | None], tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN), "--out", "a.svg", "--size", size)
    assert done.returncode == 0, done.stderr
    head = (tmp_path / "a.svg").read_text().split("viewBox", 1)[0]
    width = float(head.split('width="')[1].split("pt")[0]) / 72
    assert width == pytest.approx(inches[0], rel=1e-3)
    if inches[1] is not None:
        assert float(head.split('height="')[1].split("pt")[0]) / 72 == pytest.approx(inches[1], rel=1e-3)


def test_a_slide_is_wider_than_a_column_of_a_paper(tmp_path: Path) -> None:
    for style in ("paper", "slide"):
        assert run_here(tmp_path, "plot", str(ROOT / RUN), "--style", style, "--out", f"{style}.png").returncode == 0
    assert (tmp_path / "slide.png").stat().st_size > (tmp_path / "paper.png").stat().st_size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "figure.gif"], "--out figure.gif: the name must end with .pdf, .svg or .png"),
        (["--out", "none/figure.pdf"], "--out none/figure.pdf cannot be written (the folder none is missing): choose another file"),
        (["--kind", "pie"], "--kind 'pie' is unknown: choose from bandwidth, time, percent, scaling, history, compare"),
        (["--size", "0.1in"], "'0.1in' is not a size of a figure: use 1 to 60 inches"),
        (["--size", "wide"], "'wide' is not a size: use a width such as 3.5in, 89mm or 9cm, or width and height as in 7x4in"),
        (["--operation", "barrier"], "--operation 'barrier': these runs have allreduce"),
    ],
    ids=["ending", "folder", "kind", "too-small", "no-size", "operation"],
)
def test_bad_input_writes_nothing(words: list[str], said: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    done = run(tmp_path, "plot", str(ROOT / RUN), env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stderr) == (2, "collbench: a figure needs matplotlib: pip install 'collbench[report]'\n")


def test_what_was_not_read_is_named_before_a_failure(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / RUN, copy)
    with (copy / "cells.jsonl").open("a") as file:
        file.write('{"broken\n')
    done = run_here(tmp_path, "plot", "copy", "--kind", "scaling")
    warning, failure = done.stderr.splitlines()
    assert done.returncode == 2
    assert warning == "collbench: copy/cells.jsonl: 1 line is left out, the first is line 23: not JSON (JSONDecodeError)"
    assert failure.startswith("collbench: --kind scaling needs runs of one operation")
