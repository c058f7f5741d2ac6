"""The text of --help, byte for byte (COLLBENCH_GOLDEN=1 writes it), --version, and the imports of a start."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from argparse import SUPPRESS
from importlib import metadata
from pathlib import Path

import pytest

from collbench import __version__, plugin
from collbench.cli import main, version
from collbench.cli.help import examples, help_topics
from collbench.cli.parser import actions_of
from collbench.errors import UsageError
from collbench.operations.registry import commands as operation_commands
from collbench.plugin import BUILTIN, plugins
from tests.cli.command import BIN, ROOT, run
from tests.conftest import PLUGIN_OF, needs_all_plugins, needs_command

GOLDEN = ROOT / "tests" / "golden" / "help"
CORE_GOLDEN = ROOT / "tests" / "golden" / "help_without_plugins"  # the pages that differ from those with all plug-ins
usual_layout = pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse of Python 3.13 writes options in another way")
COMMANDS = (
    "", "allreduce", "broadcast", "reduce", "allgather", "reducescatter", "alltoall", "alltoallv", "allgatherv", "gatherv", "scatterv",
    "reducescatterv", "scan", "exscan", "gather", "scatter", "sendrecv", "hypercube", "barrier", "p2p", "put", "get", "accumulate",
    "neighbor-allgather", "neighbor-alltoall", "pairs", "hunt", "workload", "run", "check", "backends", "kernels", "probe", "peak",
    "doctor", "explain", "emit", "import", "gate", "baseline", "history", "report", "plot", "runs", "store", "compare", "completion",
)  # fmt: skip


def of_plugin(command: str) -> object:
    """Return a command, skipped where its plug-in is absent."""
    return pytest.param(command, marks=needs_command(command), id=command)


def _help(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `--help` of a command prints, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main.run([*command.split(), "--help"])
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    return said.out


@needs_all_plugins
@usual_layout
@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = _help(command, monkeypatch, capsys)
    golden = GOLDEN / f"{command or 'collbench'}.txt"
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        golden.write_text(printed)
    assert printed == golden.read_text()


@usual_layout
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in PLUGIN_OF])
def test_help_without_plugins(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The core has its own pages where plug-ins add lines."""
    monkeypatch.setattr(plugin, "_loaded", lambda: ({}, {}))
    printed = _help(command, monkeypatch, capsys)
    whole, golden = (folder / f"{command or 'collbench'}.txt" for folder in (GOLDEN, CORE_GOLDEN))
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        golden.unlink(missing_ok=True)
        if printed != whole.read_text():
            golden.write_text(printed)
    assert printed == (golden if golden.exists() else whole).read_text()


@pytest.mark.parametrize("command", [of_plugin(name) for name in COMMANDS if name])
def test_the_common_help_is_short_and_the_other_page_has_every_option(command: str) -> None:
    _, parsers = main.all_parsers()
    parser = parsers[command]
    whole = {option for action in actions_of(parser) if action.help != SUPPRESS for option in action.option_strings}
    options = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
    page = parser.format_help()
    listed = [line for line in page.splitlines() if re.match(r"  -", line)]
    assert len(listed) <= 20
    assert whole <= set(options.findall(parser.format_help(everything=True)))
    whole -= {"--no-config"}  # of all commands: it alone is not announced
    assert re.search(rf"\d more options?: collbench {command} --help-all\n$", page) or whole <= set(options.findall(page))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("command", [of_plugin(command) for command in COMMANDS])
def test_no_line_is_wider_than_the_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main.run([*command.split(), option])
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("command", [of_plugin(name) for name in COMMANDS if name])
def test_each_command_has_three_examples_that_are_accepted(command: str) -> None:
    found = examples(main.all_parsers()[1][command], operation_commands())
    assert len(found) == 3 or (len(found) == 2 and set(BUILTIN) - set(plugins()))  # one of three may need a plug-in
    for typed, what in found:
        assert what and main.parsed(shlex.split(typed)).command


@pytest.mark.parametrize(("typed", "same"), [
    (["help"], ["--help"]), (["help", "p2p"], ["p2p", "--help"]), (["help", "osu_latency"], ["p2p", "--help"]),
    (["help", "more"], ["more", "--help"]), (["help", "operations"], ["operations", "--help-all"]),
])  # fmt: skip
def test_other_ways_to_ask_for_help(typed: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for argv in (typed, same):
        assert _exit_code(argv) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


def _exit_code(argv: list[str]) -> int:
    """Return the exit code of a command line that prints a page of help."""
    try:
        return main.run(argv)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def _page(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert _exit_code(argv) == 0
    return capsys.readouterr().out


def _lines(page: str) -> list[str]:
    """Return the first words of the lines of commands in a page."""
    return [line.split()[0] for line in page.splitlines() if re.match(r"  [A-Za-z]", line)]


@pytest.mark.parametrize("width", [80, 100])
def test_the_page_of_the_program_fits_one_screen(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    page = _page(["--help"], capsys)
    assert len(page.splitlines()) <= 40
    first, groups = page.partition("Groups of commands:")[::2]
    words = "check OPERATION run hunt doctor report compare gate peak emit import explain backends"
    absent = {command for command, name in PLUGIN_OF.items() if name not in plugins()}
    assert _lines(first) == [word for word in words.split() if word not in absent]
    topics = help_topics(main.all_parsers()[1], operation_commands())
    assert set(topics) - {"operations"} <= set(_lines(groups))


def test_no_command_is_missing_from_the_pages_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = set(main.all_parsers()[1]) - set(operation_commands())
    short = _page(["--help"], capsys)
    assert commands <= set(re.findall(r"[\w-]+", short))
    topics = help_topics(main.all_parsers()[1], operation_commands())
    groups = [_page(["help", name], capsys) for name in topics if name != "operations"]
    assert commands <= {word for page in (short, *groups) for word in _lines(page)}
    assert set(_lines(_page(["help", "operations"], capsys))) == set(operation_commands())
    whole = _page(["--help-all"], capsys)
    assert set(_lines(whole)) == {"OPERATION", *commands}
    assert set(re.findall(r"[\w-]+", whole)) >= set(operation_commands())


@pytest.mark.parametrize("name", ["more", "operations"])
def test_the_name_of_a_group_is_not_a_command(name: str) -> None:
    with pytest.raises(UsageError, match=f"collbench help {name}"):
        main.run([name])


def test_a_page_of_help_prints_one_usage(capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--help-all"):
        assert main.guarded(["gate", option]) == 0
        assert capfd.readouterr().out.count("usage:") == 1


@pytest.mark.contract
@pytest.mark.parametrize("program", [(sys.executable, "-m", "collbench"), (str(BIN / "collbench"),)], ids=["python -m", "script"])
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, program: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, option, program=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"collbench {__version__}\n", "")


@pytest.mark.contract
def test_version_with_details_has_commit_python_and_libraries(tmp_path: Path) -> None:
    for options in (("--version", "-v"), ("-V", "--verbose")):
        done = run(tmp_path, *options)
        values = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert (done.returncode, done.stderr) == (0, "")
        assert values["collbench"] == __version__ and values["numpy"] == metadata.version("numpy")
        assert values["Python"].split()[0] == platform.python_version()
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        assert values["commit"].partition(",")[0] == (head or "unknown")


def git(folder: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=n", "-c", "user.email=e@localhost", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.contract
@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_a_checkout_has_its_commit_and_an_install_inside_it_that_of_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "collbench"
    package.mkdir()
    (package / "__init__.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Add a file")
    git(tmp_path, "tag", "v1.0.0")
    head = git(package, "rev-parse", "HEAD")
    assert version.commit(package) == head
    (package / "__init__.py").write_text("2\n")
    assert version.commit(package) == f"{head}, modified"
    installed = package / "venv/lib/site-packages/collbench"
    installed.mkdir(parents=True)
    monkeypatch.setattr(version, "COMMIT", "abc")
    assert version.commit(installed) == "abc"
    monkeypatch.setenv("PATH", "")  # without git
    assert version.commit(package) == ""


def imported(stderr: str) -> set[str]:
    """The packages in the output of PYTHONPROFILEIMPORTTIME, of all processes together."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.contract
@pytest.mark.parametrize("words", ["--help", "allreduce --help", "--version"])
def test_a_start_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    found = imported(run(tmp_path, *words.split(), env={"PYTHONPROFILEIMPORTTIME": "1"}).stderr)
    assert {"collbench", "argparse"} <= found
    assert not found & {"numpy", "torch", "rich", "mpi4py", "zmq", "psutil", "jsonschema", "pandas", "sqlalchemy"}


@pytest.mark.contract
@pytest.mark.parametrize(("command", "without"), [
    ("allreduce --sizes 8 --backend mpi", {"torch", "pandas", "rich", "jsonschema", "sqlalchemy"}),
    ("backends", {"torch", "pandas", "rich"}),
])  # fmt: skip
def test_the_mpi_path_imports_no_torch(command: str, without: set[str], tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = run(tmp_path, *command.split(), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0 and re.search(r"\bmpi\b", done.stdout)
    assert "mpi4py" in imported(done.stderr)
    assert not imported(done.stderr) & without
