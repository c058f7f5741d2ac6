"""Errors of the Python API; those of the commands behind it are in other families."""

import os
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import collbench
from collbench.api.frames import to_arrow
from tests.cli.command import environment
from tests.helpers import SENTENCES, Call, check_sentences
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


WORDS: dict[str, Call] = {
    "a missing path": _with_runs(lambda: collbench.read("missing")),
    "a pattern without a match": _with_runs(lambda: collbench.read("n*thing")),
    "not a path": _with_runs(lambda: collbench.read(7)),
    "a folder without runs": _with_runs(lambda: collbench.read("empty")),
    "a run that is named twice": _with_runs(lambda: collbench.read("whole", "whole")),
    "a damaged run": _with_runs(lambda: collbench.read("damaged")[0]),
    "a run of a newer version": _with_runs(lambda: collbench.read("newer")[0]),
    "an unknown operation": lambda: collbench.measure("allredoce"),
    "under a launcher": _with_runs(_launched),
    "not a margin": _with_runs(lambda: collbench.compare("whole", "whole", margin=5)),
    "not a rate": lambda: collbench.peak("allreduce", nvlink_bytes_per_s=-1.0),
    "not a number of nodes": lambda: collbench.peak("allreduce", nodes=0),
    "no pandas": _without("pandas", lambda: collbench.read("whole").frame()),
    "no pyarrow": _without("pyarrow", lambda: to_arrow(None)),
}


def test_the_words_of_messages() -> None:
    check_sentences(SENTENCES / "api.txt", WORDS)
