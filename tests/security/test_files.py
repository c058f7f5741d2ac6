"""Attacks 21 to 62: hostile tarballs, XML, JSON, texts, run folders and suites, each given to the command that reads it."""

import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from collbench.plugin import BUILTIN, plugins
from collbench.untrusted import parse_json
from tests.cli.command import BIN, ROOT, Finished, environment, run_here
from tests.machine.test_files import MACHINE, packed

SECRET = "precious-and-private"
MOST_S = 10.0
MIB = 1 << 20


def ends_well(done: Finished, *codes: int) -> str:
    """Check that any content of the file ends with a documented exit code, no traceback, at most one error, no control characters."""
    text = done.stdout + done.stderr
    assert done.returncode in (codes or (0, 1, 2, 3)), text
    assert "Traceback" not in text and "defect" not in text and SECRET not in text, text
    errors = [line for line in done.stderr.splitlines() if not line.startswith("wrote ")]
    assert done.returncode != 2 or len(errors) <= (2 if "run" in done.args else 1), done.stderr  # with what was left out of a run
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    return text


def in_time(folder: Path, *argv: str) -> Finished:
    began = time.monotonic()
    done = run_here(folder, *argv)
    assert time.monotonic() - began < MOST_S
    return done


def peak_bytes(folder: Path, *argv: str) -> tuple[Finished, int]:
    """Run the command in a process of its own; return how it ended and the most memory that it had."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    code = "import resource, sys\nfrom collbench.cli import main\ncode = main.guarded(sys.argv[1:])\n"
    code += "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\nsys.exit(code)"
    line = ["timeout", "60", str(BIN / "python"), "-P", "-c", code, *argv]
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert before >= 0
    head, _, peak = done.stderr.rpartition("peak ")
    return Finished(line, done.returncode, done.stdout, head), int(peak) << 10


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that no archive and no run folder may show."""
    path = tmp_path / "victim"
    path.write_text(SECRET)
    return path


def many_members() -> bytes:
    return tarfile.TarInfo("sys/x").tobuf() * 250_000


def negative_size() -> bytes:
    header = tarfile.TarInfo("sys/evil")
    header.pax_headers = {"size": "-512"}
    return header.tobuf(tarfile.PAX_FORMAT) + packed(*MACHINE)


class TestTarballs:
    @pytest.mark.parametrize("entry", [
        pytest.param(("../outside", "x"), id="21 upwards"), pytest.param(("OUTSIDE/outside", "x"), id="22 absolute"),
        pytest.param(("sys/class/net/x", "->", "VICTIM"), id="23 symbolic link"),
        pytest.param(("sys/class/net/x", "=", "VICTIM"), id="23 hard link"),
        pytest.param(("sys/class/net/x", tarfile.CHRTYPE), id="24 device"),
        pytest.param(("sys/class/net/x", tarfile.FIFOTYPE), id="24 pipe"),
        pytest.param(("sys/class/net/\x1b[31m\u202ex\r", "x"), id="32 escapes"),
        pytest.param(("sys/" + "d/" * 3000 + "x", "x"), id="33 deep"),
    ])  # fmt: skip
    @pytest.mark.parametrize("command", ["probe", "doctor"])
    def test_members_stay_inside(self, command: str, entry: tuple[str, ...], victim: Path, tmp_path: Path) -> None:
        words = [w.replace("VICTIM", str(victim)).replace("OUTSIDE", str(tmp_path)) if isinstance(w, str) else w for w in entry]
        (tmp_path / "machine.tar").write_bytes(packed(*MACHINE, tuple(words)))
        ends_well(in_time(tmp_path, command, "--from", "machine.tar"))
        assert not list(tmp_path.rglob("outside")) and not (tmp_path.parent / "outside").exists()

    @pytest.mark.contract
    @pytest.mark.often("30 negative size")
    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda: gzip.compress(bytes(300 * MIB), 1), id="25 gzip bomb", marks=pytest.mark.long),
            pytest.param(lambda: zstandard.ZstdCompressor().compress(bytes(300 * MIB)), id="26 zstd bomb", marks=pytest.mark.long),
            pytest.param(
                lambda: zstandard.ZstdCompressor(
                    compression_params=zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
                ).compress(packed(*MACHINE)),
                id="27 zstd window",
                marks=pytest.mark.long,
            ),
            pytest.param(many_members, id="28 members", marks=pytest.mark.long),
            pytest.param(lambda: packed(*MACHINE, ("sys/" + "1" * 5_000_000, "x")), id="29 path", marks=pytest.mark.long),
            pytest.param(negative_size, id="30 negative size", marks=pytest.mark.long),
        ],
    )
    def test_bombs_take_little_memory(self, make: Callable[[], bytes], tmp_path: Path) -> None:
        (tmp_path / "bomb.tar").write_bytes(make())
        done, peak = peak_bytes(tmp_path, "probe", "--from", "bomb.tar")
        ends_well(done)
        assert peak < 250 * MIB

    def test_31_a_sparse_file_of_a_tebibyte(self, tmp_path: Path) -> None:
        with (tmp_path / "machine.tar").open("wb") as file:
            file.write(packed(*MACHINE))
            file.truncate(1 << 40)
        ends_well(in_time(tmp_path, "probe", "--from", "machine.tar"))

    def test_34_a_forest_of_symbolic_links(self, tmp_path: Path) -> None:
        """Links of hundreds of parts each, 40 levels deep: 4000 of them, 100 KB, took minutes."""
        there_and_back = "a/" * 300 + "../" * 300
        levels = [(f"sys/l{n}", "->", f"/{there_and_back}sys/l{n + 1}") for n in range(40)]
        leaves = [(f"sys/class/net/e{n}", "->", f"/{there_and_back}sys/l{n % 40}/x{n}") for n in range(1500)]
        (tmp_path / "links.tar.gz").write_bytes(gzip.compress(packed(*MACHINE, *levels, *leaves)))
        ends_well(in_time(tmp_path, "probe", "--from", "links.tar.gz"), 0)


LOL = '<!DOCTYPE t [<!ENTITY a "lol">' + "".join(f'<!ENTITY b{n} "{f"&b{n - 1};" * 10 if n else "&a;" * 10}">' for n in range(10)) + "]>"
XML = {
    "35 entities": lambda _: f"{LOL}<system>&b9;</system>",
    "36 external entity": lambda victim: f'<!DOCTYPE s [<!ENTITY x SYSTEM "file://{victim}">]><system>&x;</system>',
    "37 external DTD": lambda _: '<!DOCTYPE topology SYSTEM "http://127.0.0.1:9/x.dtd"><topology></topology>',
    "38 deep": lambda _: "<system>" * 200_000,
    "39 wide": lambda _: f"<system>{'<a/>' * 900_000}</system>",
    "40 attributes": lambda _: "<system " + " ".join(f"a{n}=''" for n in range(300_000)) + "></system>",
}


@pytest.mark.parametrize("make", XML.values(), ids=XML)
def test_hostile_xml_is_rejected(make: Callable[[Path], str], victim: Path, tmp_path: Path) -> None:
    (tmp_path / "topo.xml").write_text(make(victim))
    ends_well(in_time(tmp_path, "probe", "--from", "topo.xml"), 2)


JSON = {
    "41 brackets": lambda: "[" * 500_000, "42 nested": lambda: "[" * 100_000 + "]" * 100_000,
    "43 digits": lambda: '{"schema": ' + "9" * 5_000_000 + "}",
    "44 no numbers": lambda: '{"schema": NaN, "machines": [1e999999, -Infinity]}', "45 lists": lambda: "[" + "[]," * 8_000_000 + "[]]",
}  # fmt: skip


@pytest.mark.often("45 lists")
@pytest.mark.parametrize(
    "make", [pytest.param(one, marks=pytest.mark.long if "45" in name else ()) for name, one in JSON.items()], ids=JSON
)
def test_hostile_json_is_rejected(make: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "machines.json").write_text(make())
    ends_well(in_time(tmp_path, "probe", "--from", "machines.json"), 2)


@pytest.mark.contract
@pytest.mark.parametrize("half", ["\ud800", "\udfff"])
def test_a_machine_with_half_a_character_is_read(half: str, tmp_path: Path) -> None:
    machine = run_here(tmp_path, "probe", "--format", "json").stdout
    spoiled = re.sub(r'": "(?=[^"\\\\])', lambda match: match[0] + json.dumps(half)[1:-1], machine)
    assert spoiled.count(json.dumps(half)[1:-1]) > 10
    (tmp_path / "whole.json").write_text(spoiled)
    place = re.search(r'"(?:hostname|model|kernel)": "', machine)
    assert place
    (tmp_path / "one.json").write_text(machine[: place.end()] + json.dumps(half)[1:-1] + machine[place.end() :])
    for argv in (["doctor"], ["probe"], ["peak", "allreduce", "--nodes", "2"]):
        ends_well(in_time(tmp_path, *argv, "--from", "whole.json"))
        ends_well(in_time(tmp_path, *argv, "--from", "one.json"), *((0, 2) if argv[0] == "peak" else (0, 1)))  # 2: no rate between nodes


TEXTS = {
    "46 columns": lambda: "\t" + "\t".join(f"GPU{n}" for n in range(200_000)) + "\nGPU0\t X \n",
    "47 blanks": lambda: "\tGPU0\tCPU Affinity\nGPU0" + " " * 4_000_000 + "X\n",
    "48 colons": lambda: "00:00.0 Host bridge" + ":" * 3_000_000 + "\n",
    "49 long line": lambda: "00:00.0 Host bridge: x\n\tCapabilities: " + "[a] <" * 1_400_000 + "\n",
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_long_lines_take_no_time(make: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text(make())
    ends_well(in_time(tmp_path, "probe", "--from", "text"))


def _line(folder: Path, name: str, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / name
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[0])
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _in_place(folder: Path, name: str, make: Callable[[Path], object]) -> None:
    (folder / name).unlink()
    make(folder / name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(256 << 30)


RUNS: dict[str, Callable[[Path, Path], object]] = {
    "50 nested line": lambda run, _: (run / "cells.jsonl").write_text("[" * 200_000 + "\n" + (run / "cells.jsonl").read_text()),
    "51 nested run.json": lambda run, _: (run / "run.json").write_text('{"a":' * 200_000),
    "52 pipe": lambda run, _: _in_place(run, "cells.jsonl", os.mkfifo),
    "53 endless device": lambda run, _: _in_place(run, "samples.bin", lambda path: path.symlink_to("/dev/zero")),
    "54 run.json is a link": lambda run, victim: _in_place(run, "run.json", lambda path: path.symlink_to(victim)),
    "55 sparse": lambda run, _: _in_place(run, "cells.jsonl", _sparse),
    "56 huge whole numbers": lambda run, _: _line(
        run, "cells.jsonl", lambda row: row.update(size_bytes=10**400, ranks=-(10**300), count=2**70)
    ),
    "57 inf and nan": lambda run, _: _line(
        run, "cells.jsonl", lambda row: row.update(algbw_bytes_per_s=float("inf"), time_s={"p50": float("nan"), "ci_low": -1e308})
    ),
    "58 code in names": lambda run, _: _line(
        run,
        "cells.jsonl",
        lambda row: row.update(operation="$(touch ran)", backend="__import__('os').system('touch ran')", device="`touch ran`"),
    ),
}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "reports/first-run", tmp_path / "run"))


@pytest.mark.parametrize("spoil", RUNS.values(), ids=RUNS)
def test_run_folders_are_read_as_untrusted_data(spoil, stored, victim, tmp_path):
    spoil(stored, victim)
    ends_well(in_time(tmp_path, "report", "run", "--csv", "rows.csv"))
    assert not (tmp_path / "ran").exists()


SUITES = {
    "59 extends a file of the system": lambda victim: f'schema = 1\nextends = ["../../../../../../..{victim}"]\n',
    "60 deep": lambda _: "schema = 1\nx = " + "[" * 100_000,
    "61 long key": lambda _: "schema = 1\n" + ".".join("a" * 200_000) + " = 1\n",
    "62 many ranks": lambda _: 'schema = 1\n[run]\nranks = 100_000_000\n[[sweeps]]\noperations = ["p2p"]\n',
}


@pytest.mark.parametrize("make", SUITES.values(), ids=SUITES)
def test_hostile_suites_are_rejected_in_one_sentence(make: Callable[[Path], str], victim: Path, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(make(victim))
    ends_well(in_time(tmp_path, "run", "suite.toml"), 2)


@pytest.mark.long
def test_only_the_requested_files_are_written(stored: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in stored.iterdir()}
    ends_well(in_time(tmp_path, "report", "run", "--html", "page.html"), 0)
    assert {path: path.read_bytes() for path in stored.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


@pytest.mark.parametrize(("text", "value"), [
    (r'"\ud800"', "\ufffd"), (r'"\uDFFFx"', "\ufffdx"), (r'"\udc00\ud800"', "\ufffd\ufffd"), (r'"\ud83d\ude00"', "\U0001f600"),
    (r'"\ud800\ud83d\ude00"', "\ufffd\U0001f600"), (r'"\\ud800"', r"\ud800"), (r'"\\\ud800"', "\\\ufffd"),
    (r'{"\udfff": ["\udfff"]}', {"\ufffd": ["\ufffd"]}), ('"\udcff"', "\ufffd"),  # of bytes that are not UTF-8
    (b'\xef\xbb\xbf"\xc3\xa9"', "é"),
])  # fmt: skip
def test_json_has_no_surrogates(text: str | bytes, value: object) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize("text", [b'"\xed\xa0\x80"', b'"\xff"', r'"\ud8"', "[" * 100_000])
def test_other_json_is_rejected(text: str | bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_json(text)


OWN_JSON = {
    "control/wire.py", "gating/verdict.py", "operations/suite.py", "measuring/telemetry.py", "plugins/training/framework_steps.py",
    "plugins/libraries/horovod.py", "launch/mpi.py",
}  # fmt: skip


def test_json_of_other_sources_is_read_in_one_place() -> None:
    """The named modules read the package's own schemas, and what a library has just written."""
    package = ROOT / "collbench"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if re.search(r"\bjson\.loads?\(", path.read_text())}
    named = OWN_JSON | {"untrusted.py", "plugins/traces/hook/_collbench_recorder.py"}
    absent = tuple(f"plugins/{name}/" for name in set(BUILTIN) - set(plugins()))
    assert found == {name for name in named if not name.startswith(absent)}
