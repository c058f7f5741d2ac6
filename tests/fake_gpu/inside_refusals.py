"""What the double refuses and in which words: test_double.py starts pytest anew for this file."""

import ctypes

import pytest

from tests.fake_gpu.ranks import NCCL, Ranks, libcuda

N = 3


def test_a_rank_that_cannot_join_is_reported_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_INIT_ERROR", "1:2")
    with pytest.raises(RuntimeError, match="remote process exited"):
        Ranks(N)


def test_two_ranks_of_one_gpu_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="invalid usage"):
        Ranks(2, devices=[0, 0])
    assert b"using the same GPU" in NCCL.ncclGetLastError(None)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    Ranks(2, devices=[0, 0]).close()


def test_an_unknown_algorithm_is_an_error_of_the_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Rung")
    with pytest.raises(RuntimeError, match="invalid usage"):
        Ranks(2)


def test_the_driver_has_words_for_its_errors() -> None:
    assert libcuda().cuGetErrorString(600, ctypes.byref(text := ctypes.c_char_p())) == 0
    assert text.value == b"device not ready"
    assert libcuda().cuGetErrorString(12345, ctypes.byref(text)) == 1
