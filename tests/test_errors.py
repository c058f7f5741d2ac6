"""An error stays readable with any text that it quotes, and memory that is exhausted is not called a bug of collbench."""

import errno
import os
import resource
import socket
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from collbench.cli import main
from collbench.errors import FAILED, Interrupted, PeerFailed, UsageError, code_of_signal, is_out_of_memory

NOT_MAPPED = "libscipy_openblas64_-32a4b2a6.so: failed to map segment from shared object"


@pytest.mark.parametrize("make", [UsageError, PeerFailed])
def test_a_long_sentence_is_shortened_in_its_middle(make: type[Exception]) -> None:
    text = str(make(f"suite.toml: '{'no' * 200_000}' is unknown: choose from name, sizes"))
    assert len(text) == 8003
    assert text.startswith("suite.toml: 'nono") and text.endswith("choose from name, sizes") and " … " in text
    assert str(make("a short one")) == "a short one"


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143), (SIGHUP, 143)])
def test_the_exit_code_after_a_signal(number: int, code: int) -> None:
    assert (code_of_signal(number), Interrupted(number).exit_code) == (code, code)


def followed_by(first: BaseException, then: Exception) -> Exception:
    """An exception as it is caught if it is raised while another one is handled."""
    try:
        try:
            raise first
        except type(first):
            raise then  # noqa: B904  # without a cause, as a clean-up does that fails
    except type(then) as error:
        return error


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), True),
        (RuntimeError("DefaultCPUAllocator: you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)"), True),
        (followed_by(MemoryError(), KeyError("row")), True),
        (followed_by(MemoryError(), UsageError("too large")), False),
        (followed_by(UsageError("too large"), KeyError("row")), False),
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT)), False),
        (ValueError("memory"), False),
    ],
)  # fmt: skip
def test_a_library_reports_exhausted_memory_in_its_own_way(error: BaseException, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


@pytest.mark.parametrize(("limit", "is_memory"), [(1 << 28, True), (resource.RLIM_INFINITY, False)])
def test_a_library_that_cannot_be_mapped_is_exhausted_memory_if_the_process_has_a_limit(
    limit: int, is_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert is_out_of_memory(followed_by(ImportError(NOT_MAPPED), ImportError("Error importing numpy"))) is is_memory


def test_a_command_without_memory_is_one_sentence_and_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(main, "run", run)
    assert main.guarded(["report", "runs/1"]) == FAILED
    sentence = capsys.readouterr().err
    assert sentence.startswith("collbench: ") and "memory" in sentence and sentence.count("\n") == 1 and "bug" not in sentence
    assert f"({socket.gethostname()}, pid {os.getpid()})" in sentence
