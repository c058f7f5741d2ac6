"""`collbench completion`: after Tab a shell offers what the parsers accept."""

import shlex
import shutil
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import pytest

from collbench import __version__
from collbench.backends.registry import backend_names
from collbench.cli.main import all_parsers
from collbench.cli.parser import actions_of
from collbench.operations.registry import commands
from collbench.plugin import plugins
from collbench.plugins.completion.command import SHELLS, script
from tests.cli.command import one_sentence, run, run_here
from tests.cli.test_help import imported
from tests.conftest import cannot, line_of_command, needs_plugin

pytestmark = pytest.mark.system

# Loads the script as a user does, and calls the function that `complete -p` lists for collbench, as bash would.
_PRESS_TAB = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
read -ra registered < <(complete -p collbench)
for ((at = 0; at < ${#registered[@]}; at++)); do
    [[ ${registered[at]} == -F ]] && "${registered[at + 1]}" collbench "${!#}" "${@: -2:1}"
done
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bash") / "collbench.bash"
    file.write_text(script("bash"))
    return file


def offered(bash_script: Path, line: str, folder: Path | None = None) -> set[str]:
    """Return the words that bash offers for the incomplete last word of `line` (after a trailing blank: an empty word)."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    asked = ["bash", "--norc", "-c", _PRESS_TAB, "bash", str(bash_script), *words]
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {word for word in done.stdout.splitlines() if word}


def long_options(command: str) -> set[str]:
    _, parsers = all_parsers()
    options = [option for action in actions_of(parsers[command]) if action.help != SUPPRESS for option in action.option_strings]
    return {option for option in options if option.startswith("--")}


@pytest.mark.parametrize(("line", "words"), [
    ("collbench allr", {"allreduce"}), ("collbench allreduce --si", {"--sizes"}), ("collbench allreduce --device c", {"cpu", "cuda"}),
    ("collbench allreduce --sizes 8 --mode gra", {"graph"}), ("collbench allreduce --dtype bf", {"bfloat16"}),
    ("collbench peak allr", {"allreduce"}), ("collbench baseline sh", {"show"}), ("collbench completion ", set(SHELLS)),
    ("collbench nothing-like-it", set()),
    pytest.param("collbench emit slurm --nodes 2 -- allr", {"allreduce"}, marks=needs_plugin("deploy")),
    pytest.param("collbench emit slurm --nodes 2 -- allreduce --si", {"--sizes"}, marks=needs_plugin("deploy")),
    pytest.param("collbench emit slurm --site site.toml --wri", {"--write"}, marks=needs_plugin("deploy")),
])  # fmt: skip
def test_bash_completes(line: str, words: set[str], bash_script: Path) -> None:
    assert offered(bash_script, line) == words


def test_bash_offers_every_command_and_every_backend(bash_script: Path) -> None:
    assert offered(bash_script, "collbench ") >= {*all_parsers()[1]} > {*commands()}
    assert offered(bash_script, "collbench allreduce --backend ") == {*backend_names()}


@pytest.mark.parametrize("command", [line_of_command(command) for command in ("allreduce", "hunt", "emit", "gate")])
def test_options_that_are_filled_in_late_are_there(command: str, bash_script: Path) -> None:
    assert offered(bash_script, f"collbench {command} --") == long_options(command)


def test_bash_completes_files_where_files_belong(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "suite.toml").touch()
    (tmp_path / "site.toml").touch()
    assert offered(bash_script, "collbench report r", tmp_path) == {"runs"}
    assert offered(bash_script, "collbench run su", tmp_path) == {"suite.toml"}
    if "deploy" in plugins():
        assert offered(bash_script, "collbench emit slurm --site si", tmp_path) == {"site.toml"}


# zsh's own pseudo-terminal: the only way to press Tab without a user. $1: folder, $2: how to load the script, $3: typed, $4: expected.
_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "unset zle_bracketed_paste; cd '$1'; autoload -Uz compinit; $2; print LOA""DED"
until [[ $seen == *LOADED* ]]; do zpty -r shell line || exit 1; seen+=$line; done; seen=
zpty -w -n shell "$3"$'\t'
repeat 400; do
    while zpty -rt shell line; do seen+=$line; print -rn -- $line; done
    [[ ${seen//$'\b'/} == *$3$4* ]] && break
    sleep 0.05
done
zpty -d shell
"""
_LOADED = {"eval": 'compinit -u -d dump; eval "$(<_collbench)"', "fpath": "fpath=($PWD $fpath); compinit -u -d dump"}


def _zsh() -> str:
    return shutil.which("zsh") or cannot("no zsh here: apt-get install zsh")


@pytest.mark.parametrize("loaded", _LOADED)
@pytest.mark.parametrize("typed", ["collbench allr·educe", "collbench allreduce --siz·es"])
@pytest.mark.long
def test_zsh_completes(typed: str, loaded: str, tmp_path: Path) -> None:
    (tmp_path / "_collbench").write_text(script("zsh"))
    begin, end = typed.split("·")
    asked = ["timeout", "30", _zsh(), "-f", "-c", _ZSH, "zsh", str(tmp_path), _LOADED[loaded], begin, end]
    done = subprocess.run(asked, capture_output=True, text=True, errors="replace", check=False)
    assert begin + end in done.stdout.replace("\b", ""), done.stdout + done.stderr


def test_zsh_reads_the_script_and_it_names_every_command(tmp_path: Path) -> None:
    written = script("zsh")
    assert written.startswith("#compdef collbench\n")
    assert all(f"\n    {command}:" in written or f"'{command}':" in written or f"{command}) " in written for command in all_parsers()[1])
    (tmp_path / "_collbench").write_text(written)
    done = subprocess.run([_zsh(), "-f", "-n", str(tmp_path / "_collbench")], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("line", "words"), [
    ("collbench allr", {"allreduce"}), ("collbench allreduce --siz", {"--sizes"}), ("collbench allreduce --mode gra", {"graph"}),
    ("collbench peak allr", {"allreduce"}), ("collbench completion ", set(SHELLS)),
])  # fmt: skip
def test_fish_completes(line: str, words: set[str], tmp_path: Path) -> None:
    fish = shutil.which("fish") or cannot("no fish here: apt-get install fish")
    (tmp_path / "collbench.fish").write_text(script("fish"))
    asked = [fish, "--no-config", "-c", 'source collbench.fish; complete -C "$argv"', line]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {offer.partition("\t")[0] for offer in done.stdout.splitlines()} == words


@pytest.mark.parametrize("shell", SHELLS)
def test_the_head_says_what_it_is_and_nothing_else(shell: str) -> None:
    lines = script(shell).splitlines()
    if shell == "zsh":
        assert lines.pop(0) == "#compdef collbench"
    assert f"collbench {__version__}" in lines[0] and f"`collbench completion {shell}`" in lines[0]
    assert not lines[1].startswith("#") and "Copy this" not in script(shell)


def test_without_shtab_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert one_sentence(run_here(tmp_path, "completion", "bash")) == "shell completion needs shtab: pip install 'collbench[completion]'"


def test_another_shell_is_rejected_and_no_other_command_imports_shtab(tmp_path: Path) -> None:
    assert one_sentence(run_here(tmp_path, "completion", "tcsh")).startswith("'tcsh' ")
    profile = {"PYTHONPROFILEIMPORTTIME": "1"}
    assert "shtab" not in imported(run(tmp_path, "explain", env=profile).stderr)
    actual = run(tmp_path, "completion", "bash", env=profile)
    assert "shtab" in imported(actual.stderr)
    assert actual.stdout.startswith("# Completion of collbench ") and not imported(actual.stderr) & {"torch", "mpi4py"}
