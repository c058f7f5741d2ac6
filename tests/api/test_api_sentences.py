"""Errors of the Python API; those of the commands behind it are in other families."""

import os
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

import collbench
from collbench.api.frames import to_arrow
from tests.cli.command import environment
from tests.helpers import Call, said
from tests.results.rows import make_row, store


def _with_runs(call: Callable[[], object]) -> Call:
    """The error of the call in a folder with the runs "whole", "damaged" and "newer", and an empty folder."""

    def run() -> object:
        with TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, environment(), clear=True):
            Path("empty").mkdir()
            for name in ("whole", "damaged", "newer"):
                store(Path(name), [make_row(8)], **({"schema": 2} if name == "newer" else {}))
            with Path("damaged/cells.jsonl").open("a") as file:
                file.write('{"operation": 7}\n')
            return call()

    return run


def _without(module: str, call: Callable[[], object]) -> Call:
    def run() -> object:
        with patch.dict(sys.modules, {module: None}):
            return call()

    return _with_runs(run)


def _launched() -> object:
    with patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}):
        return collbench.measure("allreduce")


WORDS: dict[str, tuple[Call, str]] = {
    "a missing path": (_with_runs(lambda: collbench.read("missing")),
        "missing does not exist: name a run's folder, a folder of runs, a pattern, or a file that another tool printed"),
    "a pattern without a match": (_with_runs(lambda: collbench.read("n*thing")),
        "n*thing does not exist: name a run's folder, a folder of runs, a pattern, or a file that another tool printed"),
    "not a path": (_with_runs(lambda: collbench.read(7)),
        "7 is not a valid path (expected str, bytes or os.PathLike object, not int): name a run's folder, a folder of runs, or a file"),
    "a folder without runs": (_with_runs(lambda: collbench.read("empty")),
        "empty holds no run: name a run's folder, or a folder with runs below it"),
    "a run that is named twice": (_with_runs(lambda: collbench.read("whole", "whole")), "whole is named twice: name each run once"),
    "a damaged run": (_with_runs(lambda: collbench.read("damaged")[0]),
        "damaged/cells.jsonl: 1 line is left out, the first is line 2: 'operation' is '7'; use `collbench.read(…, strict=False)` for "
        "what can be read"),
    "a run of a newer version": (_with_runs(lambda: collbench.read("newer")[0]),
        "newer/run.json was written by a newer collbench (schema 2, this one knows 1): what is unknown here is left out; the version "
        "that wrote it reads all of it; use `collbench.read(…, strict=False)` for what can be read"),
    "an unknown operation": (lambda: collbench.measure("allredoce"), "unknown operation 'allredoce': did you mean allreduce?"),
    "under a launcher": (_with_runs(_launched),
        "collbench.measure starts ranks itself, but torchrun has started this process: run `collbench allreduce --out DIR` under the "
        "launcher, then use collbench.read(DIR)"),
    "not a margin": (_with_runs(lambda: collbench.compare("whole", "whole", margin=5)),
        "margin=5: not a valid fraction (use a number above 0 and below 1, such as 0.05)"),
    "not a rate": (lambda: collbench.peak("allreduce", nvlink_bytes_per_s=-1.0),
        "nvlink_bytes_per_s=-1.0: not a valid number (use one above 0)"),
    "not a number of nodes": (lambda: collbench.peak("allreduce", nodes=0), "nodes=0: not a valid number (use 1 or more)"),
    "no pandas": (_without("pandas", lambda: collbench.read("whole").frame()), "a DataFrame needs pandas: pip install 'collbench[pandas]'"),
    "no pyarrow": (_without("pyarrow", lambda: to_arrow(None)),
        "an Arrow table or a Parquet file needs pyarrow: pip install 'collbench[pandas]'"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text
