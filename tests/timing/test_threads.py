"""Tasks at the same time: their answers in order, the first error, and an end to waiting."""

import threading
from functools import partial

import pytest

from collbench.errors import WaitExpired
from collbench.measuring.sync import at_once


def test_they_run_at_the_same_time_and_answer_in_their_order() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def task(place: int) -> int:
        meeting.wait()
        return place * place

    assert at_once([partial(task, place) for place in range(3)], "squaring", 20) == [0, 1, 4]


@pytest.mark.parametrize("error", [OSError("reset"), ValueError("not a number")])
def test_the_error_of_any_is_raised(error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        at_once([lambda: None, fails], "pouring")


def test_one_that_does_not_end_is_reported() -> None:
    ending = threading.Event()
    with pytest.raises(WaitExpired, match=r"^copying memory: 1 of 2 threads .* 0\.05 s$"):
        at_once([lambda: True, ending.wait], "copying memory", 0.05)
    ending.set()
