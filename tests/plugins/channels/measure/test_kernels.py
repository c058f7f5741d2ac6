"""`collbench kernels` distinguishes wrong data from slow kernels, and a missing GPU from both."""

import pytest

from collbench.device.unavailable import NoDriver
from collbench.errors import RunFailed, UsageError
from collbench.plugins.channels import kernels
from collbench.plugins.channels.kernels import KernelFigure, measure_kernels


class Shown(list[str]):
    """Takes what is measured."""

    def start(self, gpus: object, size: int) -> None:
        self.append(f"{size} bytes")

    def figure(self, figure: KernelFigure) -> None:
        self.append(figure.kernel)

    def end(self) -> None:
        self.append("end")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[KernelFigure]:
    figures: list[KernelFigure] = []
    monkeypatch.setattr(kernels, "gpu_obstacle", lambda env: None)
    monkeypatch.setattr(kernels, "gpu_count", lambda: 0)
    monkeypatch.setattr(kernels, "fitting_size", lambda gpus, asked: asked)
    monkeypatch.setattr(kernels, "figures", lambda gpus, size: iter(figures))
    return figures


def test_figures_are_shown_as_they_come_before_wrong_data_fails_the_run(found: list[KernelFigure]) -> None:
    found += [KernelFigure("copy", (0,), wrong=0), KernelFigure("peer_read", (0,), why="one GPU is visible")]
    shown = Shown()
    assert measure_kernels({}, 4096, shown) == 0
    assert shown == ["4096 bytes", "copy", "peer_read", "end"]
    found += [KernelFigure("peer_write", (0, 3), wrong=5), KernelFigure("copy", (1,), wrong=0)]
    shown = Shown()
    with pytest.raises(RunFailed, match=r"^peer_write on GPU 0 and 3: 5 elements .*Xid"):
        measure_kernels({}, 4096, shown)
    assert shown[-1] == "end"


def test_memory_that_ends_meanwhile_is_one_sentence(monkeypatch: pytest.MonkeyPatch, found: list[KernelFigure]) -> None:
    def ended(gpus: object, size: int) -> None:
        raise MemoryError("GPU 0 cannot give 1 GiB: 2 MiB of 80 GiB is free")

    monkeypatch.setattr(kernels, "figures", ended)
    with pytest.raises(UsageError, match=r"GPU 0 .*1 GiB.* --size"):
        measure_kernels({}, 4096, Shown())


def test_without_a_gpu_the_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "gpu_obstacle", lambda env: NoDriver())
    with pytest.raises(UsageError, match="no NVIDIA driver"):
        measure_kernels({}, None, Shown())
