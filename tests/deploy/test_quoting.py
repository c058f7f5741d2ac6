"""What is quoted is read back as it was by the language it is quoted for: bash itself, PyYAML, Python, Ansible."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collbench.deploy import files
from collbench.deploy.files import Quoted
from collbench.errors import UsageError
from tests.deploy.texts import HOSTILE, UNPRINTABLE, texts

HOSTILE_LIST = list(HOSTILE)
OF_LISTS = [each for each in files.FILTERS if "words" in each.__annotations__]
OF_TEXTS = [each for each in files.FILTERS if each not in OF_LISTS]


def said_by_bash(quoted: str) -> list[str]:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {quoted}"], capture_output=True, check=True)
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(texts, min_size=1, max_size=20))
@example(HOSTILE_LIST)
def test_bash_reads_the_same_words(words: list[str]) -> None:
    assert said_by_bash(files.line(words)) == words
    assert said_by_bash(" ".join(files.sh(word) for word in words)) == words


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(texts, max_size=20))
@example(HOSTILE_LIST)
def test_yaml_reads_the_same_strings(words: list[str]) -> None:
    assert yaml.safe_load(f"a: {files.yamls(words)}  # and a remark") == {"a": words}
    for word in words:
        assert yaml.safe_load(f"- {files.yaml(word)}  # and a remark") == [word]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(texts, max_size=20))
@example(HOSTILE_LIST)
def test_python_reads_the_same_strings(words: list[str]) -> None:
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


@pytest.mark.parametrize(
    ("text", "shell", "pod", "ansible"),
    [
        ("plain", "plain", '"plain"', '"plain"'),
        ("a b;c", "'a b;c'", '"a b;c"', '"a b;c"'),
        ("$(HOME)", "'$(HOME)'", '"$$(HOME)"', '"$(HOME)"'),
        ("{{ x }}", "'{{ x }}'", '"{{ x }}"', '!unsafe "{{ x }}"'),
        ("no", "no", '"no"', '"no"'),
    ],
)
def test_how_each_language_is_quoted(text: str, shell: str, pod: str, ansible: str) -> None:
    assert (files.sh(text), files.pod(text), files.ansible(text)) == (shell, pod, ansible)
    assert files.line([text, "x"]) == f"{shell} x" and files.pods([text]) == f"[{pod}]"
