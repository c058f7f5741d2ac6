"""The time left that is shown while a run measures."""

from types import SimpleNamespace

import pytest

from collbench.report import progress
from collbench.report.progress import Output, ProgressPrinter


def test_the_time_left_is_estimated_from_the_finished_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    screen = SimpleNamespace(room=None, status=lambda *_: None, progress=lambda title, done, total, eta_s: left.append(eta_s))
    clock = [100.0]
    monkeypatch.setattr(progress, "make_screen", lambda *_, **__: screen)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    actual = ProgressPrinter(Output(color="never"))
    actual.progress("first", 0, 10, None)
    clock[0] += 20.0
    actual.progress("fifth", 4, 10, None)
    actual.progress("sixth", 5, 10, 7.0)
    assert left == [None, pytest.approx(30.0), 7.0]
