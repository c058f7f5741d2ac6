"""A sample of the fuzzed files: `python -m tools.benchmarks folder_fuzz` plays 100,000 of them."""

import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.benchmarks import folder_fuzz
from tools.benchmarks.example_files import Files
from tools.benchmarks.hostile_files import emptied, play

_FIRST = 1_000_000  # others than those of the committed table


@pytest.fixture(scope="module")
def files():
    return Files()


@pytest.mark.parametrize("number", range(_FIRST, _FIRST + 60))
def test_an_altered_file_ends_in_a_result_or_in_a_sentence(number, files, tmp_path):
    with _least_memory():
        played = play(number, files, emptied(tmp_path / "case"))
    assert played.shown or played.refused, played.altered


@contextmanager
def _least_memory():
    """What would take more than 4 GiB fails here and takes no other process along."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_case_is_the_same_each_time(files, tmp_path):
    for number in (3, 7):
        first, second = (play(number, files, emptied(tmp_path / "case")) for _ in range(2))
        assert first == second


def test_a_failing_case_is_reported_with_its_number(monkeypatch):
    def broken(number, files, folder):
        raise RecursionError(f"case {number}")

    monkeypatch.setattr(folder_fuzz, "play", broken)
    actual = list(folder_fuzz.play_all(5, 2))
    assert [each["case"] for each in actual] == [5, 6] and "RecursionError: case 6" in str(actual[1]["failed"])
    found = folder_fuzz.Outcomes()
    for each in actual:
        found.add(each)
    assert folder_fuzz._outcome(found, 1.0).figures[0].cases()[-1] == "MISSED"


@pytest.mark.long
def test_processes_of_their_own_play_all_cases():
    outcome = folder_fuzz.measure(300, first=2_000_000)
    assert outcome.raw[0]["cases"] == 300
    assert outcome.figures[0].cases()[1] == "0", outcome.raw[1:]
    assert outcome.figures[1].cases()[-1] == "met"
