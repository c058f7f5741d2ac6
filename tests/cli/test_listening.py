"""Output while a run measures: the time left, and the trainings of a workload."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.report import progress
from collbench.report.progress import Output, ProgressPrinter


class Shown:
    """A screen that stores its calls."""

    room = None

    def __init__(self) -> None:
        self.left: list[float | None] = []

    def status(self, text: str, left_s: float | None = None) -> None:
        """Show nothing."""

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        self.left.append(eta_s)


def test_the_time_left_is_estimated_from_the_finished_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: Any = Shown()
    clock = [100.0]
    monkeypatch.setattr(progress, "make_screen", lambda *_, **__: shown)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    actual = ProgressPrinter(Output(color="never"))
    actual.progress("first", 0, 10, None)
    clock[0] += 20.0
    actual.progress("fifth", 4, 10, None)
    actual.progress("sixth", 5, 10, 7.0)
    assert shown.left == [None, pytest.approx(30.0), 7.0]
