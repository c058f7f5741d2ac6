"""Where NCCL is looked for, in which order, and what a tuning does to the environment."""

import os
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Tuning
from collbench.backends.nccl import library as nccl_library
from collbench.backends.nccl.binding import _remedy, grouped, tuned
from collbench.backends.nccl.library import NcclFailed, NcclNotFound, load_nccl
from collbench.backends.unavailable import DoesNotLoad


def places(monkeypatch, *folders):
    spec = SimpleNamespace(submodule_search_locations=[str(folder) for folder in folders]) if folders else None
    monkeypatch.setattr(nccl_library, "find_spec", lambda name: spec)
    return [(name, bool(mode & os.RTLD_NOLOAD)) for name, mode in nccl_library._places()]


def test_what_the_process_has_loaded_comes_first_then_the_wheel_then_the_system(monkeypatch, tmp_path):
    wheel = tmp_path / "two/nccl/lib/libnccl.so.2"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    found = places(monkeypatch, tmp_path / "one", tmp_path / "two")
    assert found == [("libnccl.so.2", True), (str(wheel), False), ("libnccl.so.2", False)]


def test_without_a_wheel_the_system_is_asked(monkeypatch):
    assert places(monkeypatch) == [("libnccl.so.2", True), ("libnccl.so.2", False)]


def test_a_chosen_library_is_never_replaced_by_another_one(tmp_path):
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(NcclNotFound) as error:
        load_nccl({"COLLBENCH_NCCL": str(tmp_path / "broken.so")})
    assert isinstance(error.value.obstacle, DoesNotLoad) and error.value.obstacle.package == f"COLLBENCH_NCCL={tmp_path / 'broken.so'}"


@pytest.mark.parametrize(("tuning", "inside"), [
    (None, ("user's", None)), (Tuning("ring", "ll"), ("ring", "ll")), (Tuning(None, "simple"), ("user's", "simple")),
    (Tuning("tree", None), ("tree", None)),
])  # fmt: skip
def test_a_tuning_holds_inside_and_what_was_there_comes_back(monkeypatch, tuning, inside):
    monkeypatch.setenv("NCCL_ALGO", "user's")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    with pytest.raises(ZeroDivisionError), tuned(tuning):
        assert (os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")) == inside
        raise ZeroDivisionError
    assert (os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")) == ("user's", None)


class Recorder:
    """A library that keeps the names of its calls."""

    def __init__(self):
        self.calls = []
        self.handle = SimpleNamespace(ncclGroupEnd=lambda: self.calls.append("given up"))

    def call(self, name):
        self.calls.append(name)


def test_a_group_is_ended_once_after_any_error_inside():
    library = Recorder()
    with grouped(library):
        library.call("a")
    with pytest.raises(NcclFailed), grouped(library):
        raise NcclFailed("b")
    assert library.calls == ["ncclGroupStart", "a", "ncclGroupEnd", "ncclGroupStart", "given up"]


def test_an_old_driver_has_a_remedy_of_its_own():
    old = NcclFailed("", last_error="Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'")
    assert "nvidia-nccl-cu12" in _remedy(old)
    assert "NCCL_DEBUG=INFO" in _remedy(NcclFailed("", last_error="Connection refused"))
