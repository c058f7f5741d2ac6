"""What the command lines of the corpus read: stored runs, captured machines, outputs of other tools, and odd inputs.

Nothing here imports collbench: the inputs must be the same whatever its code is called.
"""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.stored import stored, stored_reports

ROOT = Path(__file__).parents[2]
_SAMPLES = ROOT / "tests/plugins/importers/samples"
_FIRST_RUN = stored_reports() / "first-run"
_RUN_FILES = ("run.json", "cells.jsonl")
# The runs of `reports` that are there as they were measured. All others are in tests/stored.tar.xz, without samples.
_COMMITTED = ("hang-dumps", "hunt-host", "published-8xa100", "regression", "replay", "routing", "suites", "training")


def lay_out(folder: Path) -> None:
    """Write every input into the folder: reports, machines, tools, dumps, predict, odd."""
    reports = folder / "reports"
    shutil.copytree(stored_reports(), reports, ignore=shutil.ignore_patterns("*-trials", "fault-*", "launch-[3-6]", "missing.json"))
    for name in ("pairs-trials/host-0", "pairs-trials/pair-0", *_COMMITTED):
        source = ROOT / "reports" / name
        shutil.copytree(source if source.exists() else stored_reports() / name, reports / name)
    shutil.copytree(stored() / "predict", folder / "predict")
    shutil.copytree(_SAMPLES, folder / "tools")
    (folder / "logs").mkdir()
    shutil.copy(ROOT / "tests/plugins/joblogs/log_lines.txt", folder / "logs")
    for capture in sorted((ROOT / "tests/machines").glob("*.toml")):
        _unpack(capture, folder / "machines" / capture.stem)
    for name, write in ODD.items():
        write(folder / "odd" / name)


def _unpack(capture: Path, folder: Path) -> None:
    """Write the files of a captured machine; its archive of /sys and /proc is one of them."""
    folder.mkdir(parents=True)
    for name, text in tomllib.loads(capture.read_text(encoding="utf-8")).get("files", {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    for archive in capture.parent.glob(f"{capture.stem}.tar.*"):
        shutil.copy(archive, folder)


# Odd inputs: damaged, foreign and empty folders and files.

Writer = Callable[[Path], object]


def _file(data: bytes | str) -> Writer:
    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    return write


def _run(**files: bytes | str | None) -> Writer:
    """Return the writer of the run reports/first-run with other contents of run.json and cells.jsonl; None: without that file."""

    def write(path: Path) -> None:
        path.mkdir(parents=True)
        for name in _RUN_FILES:
            data = files.get(name.partition(".")[0], (_FIRST_RUN / name).read_bytes())
            if data is not None:
                _file(data)(path / name)

    return write


def _rows(change: Callable[[dict[str, object]], object]) -> Writer:
    """Return the writer of that run with a change in each row."""
    rows = [json.loads(line) for line in (_FIRST_RUN / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        change(row)
    return _run(cells="".join(f"{json.dumps(row)}\n" for row in rows))


def _information(**changes: object) -> Writer:
    """Return the writer of that run with changes in run.json."""
    information = json.loads((_FIRST_RUN / "run.json").read_text(encoding="utf-8"))
    return _run(run=json.dumps({**information, **changes}))


_CELLS = (_FIRST_RUN / "cells.jsonl").read_bytes()
_NVIDIA_SMI = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tSYS\nNIC0\tPIX\tSYS\t X \n"
ODD: dict[str, Writer] = {
    "empty-folder": lambda path: path.mkdir(parents=True),
    "empty-file": _file(b""),
    "binary": _file(bytes(range(256)) * 16),
    "nul-bytes.txt": _file(b"\0" * 64 + b"\n# nThread 1\n"),
    "latin-1.txt": _file("Größe 8 Bytes, ±3 µs\n".encode("latin-1")),
    "utf-16.txt": _file("# nccl-tests version 2.17\n".encode("utf-16")),
    "html.txt": _file("<!doctype html><html><body>404</body></html>\n"),
    "foreign.csv": _file("size;time\n8;1,5\n16;1,6\n"),
    "foreign.json": _file('{"name": "pytest-benchmark", "benchmarks": [{"stats": {"mean": 1e-6}}]}'),
    "list.json": _file("[1, 2, 3]"),
    "deep.json": _file("[" * 5000 + "]" * 5000),
    "cut.json": _file('{"schema": 1, "machines": [{"hostname": "node1", "sys'),
    "surrogate.json": _file('{"schema": 1, "machines": [{"hostname": "\\udfff"}]}'),
    "huge-number.json": _file('{"schema": 1, "machines": ' + "9" * 5000 + "}"),
    "topology-matrix.txt": _file(_NVIDIA_SMI),
    "topology-matrix-cut.txt": _file(_NVIDIA_SMI[:40]),
    "topology-matrix-crlf.txt": _file(_NVIDIA_SMI.replace("\n", "\r\n")),
    "two-tools.txt": _file((_SAMPLES / "osu-5.9.txt").read_bytes() + (_SAMPLES / "rccl_tests.txt").read_bytes()),
    "dump-cut": _file((ROOT / "reports/hang-dumps/dump_rank_0").read_bytes()[:200]),
    "dump-evil": _file(b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."),
    "dump-empty.json": _file('{"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}'),
    "verdict-foreign.json": _file('{"outcome": "passed"}'),
    "suite-unknown-key.toml": _file('[[sweep]]\noperation = "allreduce"\ncolour = "blue"\n'),
    "suite-cut.toml": _file("[[sweep]\n"),
    "run-without-cells": _run(cells=None),
    "run-without-run-json": _run(run=None),
    "run-empty-cells": _run(cells=b""),
    "run-cut-cells": _run(cells=_CELLS[:-40]),
    "run-cut-in-the-middle": _run(cells=_CELLS[:200] + b"\n" + _CELLS),
    "run-nul-cells": _run(cells=_CELLS + b"\0" * 512),
    "run-twice-the-rows": _run(cells=_CELLS + _CELLS),
    "run-json-is-a-list": _run(run="[]"),
    "run-json-is-empty": _run(run=""),
    "run-json-has-nan": _run(run='{"schema": NaN}'),
    "run-of-a-later-schema": _information(schema=99),
    "run-without-hosts": _information(hosts=[]),
    "run-with-odd-hosts": _information(hosts=["<b>node1</b>", "node\n2", "\u202enode3"]),
    "run-with-an-odd-label": _information(label="=HYPERLINK(1)", command=["collbench", "allreduce", "--out", "$(touch x)"]),
    "rows-with-nan": _rows(lambda row: row.update(busbw_bytes_per_s=float("nan"))),
    "rows-with-text-for-numbers": _rows(lambda row: row.update(size_bytes="8 B")),
    "rows-with-negative-times": _rows(lambda row: row.update(time_s={"p50": -1.0})),
    "rows-with-an-unknown-operation": _rows(lambda row: row.update(operation="allteleport")),
    "rows-with-an-unknown-backend": _rows(lambda row: row.update(backend="smoke-signals")),
    "rows-with-unknown-fields": _rows(lambda row: row.update(colour="blue")),
    "rows-with-unknown-flags": _rows(lambda row: row.update(flags=["haunted"])),
    "rows-with-wrong-data": _rows(lambda row: row.update(wrong=7)),
    "rows-with-odd-text": _rows(lambda row: row.update(dtype="<script>alert(1)</script>")),
    "rows-of-largest-sizes": _rows(lambda row: row.update(size_bytes=1 << 62)),
}
