"""The same job with every kind of the registry: each starts the same arguments on as many ranks, with any characters in them.

A shell script is run by bash, with doubles of launchers that store their arguments; a manifest and a playbook are read by
PyYAML; a check by Python. A new kind needs an entry in STARTS: the number of ranks that its file starts.
"""

import ast
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.deploy import files
from collbench.plugins.deploy.files import Quoted
from collbench.plugins.deploy.job import LauncherKind, job_of
from collbench.plugins.deploy.kinds import kinds
from tests.plugins.deploy.recorded import LAUNCHERS, Recorded, program, run_by_bash
from tests.plugins.deploy.texts import HOSTILE, UNPRINTABLE, texts

ORDINARY = ("allreduce", "--sizes", "1K-1G", "--backend", "nccl,gloo")
NODES, RANKS = 3, 4
# what a kind cannot do without
NEEDED: dict[str, dict[str, str]] = {"kubernetes": {"image": "registry.example/collbench:1"}}
each_kind = pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)

Words = list[str]


def emitted(kind: LauncherKind, command: Sequence[str], **said: Any) -> str:
    settings: dict[str, Any] = {**NEEDED.get(kind.name, {}), "nodes": NODES, "ranks-per-node": RANKS, **said}
    return kind.render(job_of(kind, tuple(command), settings))


def started(text: str, folder: Path) -> list[Words]:
    """Return the command lines that a launcher or a host starts, from a file in any of the languages."""
    if text.startswith("#!"):
        return [played(text, folder).words]
    if "import reframe" in text:
        return [shlex.split(" ".join([found(text, "executable"), *found(text, "executable_opts")]))]  # a line of its job script
    playbook = "ansible" in text
    lists = [words for document in yaml.load_all(text, Loader=Playbook) for words in lists_of_texts(document)]
    return [[as_given(word, playbook=playbook) for word in words] for words in lists]


def played(script: str, folder: Path) -> Recorded:
    """Run it in a job of Slurm."""
    program(folder, "scontrol", "#!/bin/bash\nprintf 'n%s\\n' 1 2 3\n")
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURM_NNODES": "3", "SLURM_NODEID": "0"}
    env |= {"SLURM_PROCID": "0", "HOME": str(folder), "SLURM_SUBMIT_DIR": str(folder)}
    actual = run_by_bash(folder, script, launchers=(*LAUNCHERS, "collbench"), env=env)
    assert actual.code == 0, actual.said
    return actual


def found(text: str, name: str) -> Any:
    (value,) = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    return ast.literal_eval(value)


class Playbook(yaml.SafeLoader):
    """YAML with Ansible's tag for plain text; text without the tag must have no template, or be the playbook's own."""


def literally(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return "\0" + loader.construct_scalar(node)


Playbook.add_constructor("!unsafe", literally)


def lists_of_texts(part: Any) -> Iterator[Words]:
    if isinstance(part, list) and part and all(isinstance(each, str) for each in part):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from lists_of_texts(each)


def as_given(text: str, *, playbook: bool) -> str:
    """Ansible fills in {{ … }} unless its tag is present; Kubernetes reads $$ as $ and $(NAME) as a variable."""
    if playbook:
        return "filled in by Ansible" if re.search(r"\{[{%#]", text) and not text.startswith("\0") else text.removeprefix("\0")
    return re.sub(r"\$\$|\$\([^)]*\)", lambda match: "$" if match[0] == "$$" else "filled in by Kubernetes", text)


def holds(lines: Sequence[Words], wanted: Words) -> bool:
    return any(line[at : at + len(wanted)] == wanted for line in lines for at in range(len(line)))


def variables(text: str, folder: Path) -> dict[str, str]:
    """Return a rank's variables with names that begin with HOSTILE_."""
    if text.startswith("#!"):
        actual = played(text, folder)
        passed = dict(word.split("=", 1) for word in actual.words if re.match(r"HOSTILE_\d+=", word))
        return {name: value for name, value in {**actual.env, **passed}.items() if name.startswith("HOSTILE_")}
    if "import reframe" in text:
        exports = "\n".join(found(text, "prerun_cmds"))
        said = subprocess.run(["bash", "-c", f"{exports}\nenv -0"], cwd=folder, capture_output=True, text=True, check=True).stdout
        return dict(pair.split("=", 1) for pair in said.split("\0") if pair.startswith("HOSTILE_"))
    playbook = "ansible" in text
    found_pairs = [pair for document in yaml.load_all(text, Loader=Playbook) for pair in pairs(document)]
    return {name: as_given(value, playbook=playbook) for name, value in found_pairs}


def pairs(part: Any) -> Iterator[tuple[str, str]]:
    """Variables in YAML, as a mapping or as Kubernetes' list of name and value."""
    if isinstance(part, dict):
        if str(part.get("name", "")).startswith("HOSTILE_"):
            yield part["name"], part["value"]
        yield from ((name, value) for name, value in part.items() if str(name).startswith("HOSTILE_"))
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from pairs(each)


@pytest.mark.system
@each_kind
def test_hostile_words_of_the_command_its_path_and_variables_come_through(kind: LauncherKind, tmp_path: Path) -> None:
    command = ["allreduce", *HOSTILE]
    path = str(tmp_path / "it's a {{ path }} # $(touch injected)" / "collbench")
    wanted = {f"HOSTILE_{number}": word for number, word in enumerate(HOSTILE)}
    text = emitted(kind, command, program=path, env=tuple(f"{name}={value}" for name, value in wanted.items()))
    lines = started(text, tmp_path)
    assert holds(lines, [path, *command]), lines
    assert variables(text, tmp_path) == wanted
    assert not (tmp_path / "injected").exists()


def number(pattern: str, text: str) -> int:
    (value,) = set(re.findall(pattern, text, re.MULTILINE))
    return int(value)


STARTS: dict[str, Callable[[str], int]] = {
    "ansible": lambda text: number(r'WORLD_SIZE: "(\d+)"', text) * number(r'--ranks-per-node".*\n\s+- "(\d+)"', text),
    "kubernetes": lambda text: number(r"^  completions: (\d+)", text) * number(r'"--ranks-per-node", "(\d+)"', text),
    "mpirun": lambda text: number(r"^ *-n (\d+)", text),
    "reframe": lambda text: int(found(text, "num_tasks")),
    "slurm": lambda text: number(r"^#SBATCH --nodes=(\d+)", text) * number(r"^#SBATCH --ntasks-per-node=(\d+)", text),
    "torchrun": lambda text: number(r"--nnodes (\d+)", text) * number(r"--nproc-per-node (\d+)", text),
}


@each_kind
@pytest.mark.parametrize(("said", "ranks"), [
    ({}, NODES * RANKS), ({"nodes": 1}, RANKS), ({"gpus-per-node": 8, "ranks-per-node": 8}, 24),
    ({"nodes": 512, "ranks-per-node": 8}, 4096),
])  # fmt: skip
def test_as_many_ranks_as_the_job_has(kind: LauncherKind, said: dict[str, int], ranks: int) -> None:
    assert kind.name in STARTS, f"add the number of ranks that the file of {kind.name} starts to STARTS"
    assert STARTS[kind.name](emitted(kind, ORDINARY, **said)) == ranks


@each_kind
@pytest.mark.parametrize("where", ["command", "program", "env"])
def test_a_line_end_never_gets_into_a_file(kind: LauncherKind, where: str) -> None:
    command = (*ORDINARY, "--allocation", "a\nb") if where == "command" else ORDINARY
    said: dict[str, Any] = {"program": {"program": "a\nb"}, "env": {"env": ("A=a\nb",)}}.get(where, {})
    with pytest.raises(UsageError, match=r"a\\nb' contains control characters"):
        emitted(kind, command, **said)


# What is quoted is read back as it was by the language it is quoted for: bash itself, PyYAML, Python, Ansible.

HOSTILE_LIST = list(HOSTILE)
OF_LISTS = [each for each in files.FILTERS if "words" in each.__annotations__]
OF_TEXTS = [each for each in files.FILTERS if each not in OF_LISTS]


def said_by_bash(quoted: str) -> list[str]:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {quoted}"], capture_output=True, check=True)
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.system
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(texts, min_size=1, max_size=20))
@example(HOSTILE_LIST)
def test_bash_reads_the_same_words(words: list[str]) -> None:
    assert said_by_bash(files.line(words)) == words
    assert said_by_bash(" ".join(files.sh(word) for word in words)) == words


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(texts, max_size=20))
@example(HOSTILE_LIST)
def test_yaml_and_python_read_the_same_strings(words: list[str]) -> None:
    assert yaml.safe_load(f"a: {files.yamls(words)}  # and a remark") == {"a": words}
    for word in words:
        assert yaml.safe_load(f"- {files.yaml(word)}  # and a remark") == [word]
    assert [ast.literal_eval(files.python(word)) for word in words] == words


@settings(max_examples=40, deadline=None, derandomize=True)
@given(texts)
@example("a # b: '\"")
def test_a_remark_ends_with_its_line(text: str) -> None:
    assert yaml.safe_load(f"a: 1  # {files.remark(text)}\nb: 2\n") == {"a": 1, "b": 2}
    assert ast.unparse(ast.parse(f"a = 1  # {files.remark(text)}\nb = 2\n")) == "a = 1\nb = 2"


@pytest.mark.parametrize("text", UNPRINTABLE, ids=ascii)
@pytest.mark.parametrize("quote", OF_TEXTS, ids=lambda each: each.__name__)
def test_each_filter_rejects_line_ends_and_control_characters(quote: Callable[[str], Quoted], text: str) -> None:
    with pytest.raises(UsageError, match="control characters"):
        quote(text)


@pytest.mark.parametrize("quote", OF_LISTS, ids=lambda each: each.__name__)
def test_and_in_each_word_of_a_list(quote: Callable[[list[str]], Quoted]) -> None:
    with pytest.raises(UsageError, match=r"'a\\nb' contains control characters"):
        quote(["fine", "a\nb"])


def test_text_that_is_not_fully_quoted_is_rejected() -> None:
    quoted = files.sh("a")
    assert isinstance(quoted, Quoted)
    assert not isinstance(quoted + "; rm", Quoted)
    assert not isinstance(f"{quoted}; rm", Quoted)


@pytest.mark.parametrize(("text", "shell", "pod", "ansible"), [
    ("plain", "plain", '"plain"', '"plain"'), ("a b;c", "'a b;c'", '"a b;c"', '"a b;c"'),
    ("$(HOME)", "'$(HOME)'", '"$$(HOME)"', '"$(HOME)"'), ("{{ x }}", "'{{ x }}'", '"{{ x }}"', '!unsafe "{{ x }}"'),
    ("no", "no", '"no"', '"no"'),
])  # fmt: skip
def test_how_each_language_is_quoted(text: str, shell: str, pod: str, ansible: str) -> None:
    assert (files.sh(text), files.pod(text), files.ansible(text)) == (shell, pod, ansible)
    assert files.line([text, "x"]) == f"{shell} x" and files.pods([text]) == f"[{pod}]"
