"""The plug-in for pytest: the fixture and the marker `collbench`, two options, and the measurements in pytest's summary.

pytest imports it in every session of an environment with collbench, so it imports nothing else before a test uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collbench.testing.network import NetworkTest

MARKER = "collbench"
INCONCLUSIVE, OUT = "--collbench-inconclusive", "--collbench-out"
PROPERTY = "collbench"  # the property of a test's report that has a line for the summary


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("collbench", "collbench: measurements of the network")
    group.addoption(
        INCONCLUSIVE, choices=("skip", "fail"), default="skip",
        help="outcome of a test if the data shows neither that it passes nor that it fails (default: skip)",
    )  # fmt: skip
    group.addoption(OUT, metavar="DIR", help="folder for the runs of all tests (default: in each test's tmp_path)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(operation, sizes=…, backend=…, ranks=…): what the fixture `collbench` measures; the arguments are those of "
        "collbench.measure",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test with the marker that does not use the fixture: it would measure nothing."""
    if item.get_closest_marker(MARKER) and "collbench" not in getattr(item, "fixturenames", ()):
        pytest.fail(f"{item.nodeid} has the marker '{MARKER}', but not the fixture: add the argument `collbench`", pytrace=False)


@pytest.fixture
def collbench(request: pytest.FixtureRequest) -> Iterator[NetworkTest]:
    """Measure what the marker names, when the test first uses it: `runs`, `assert_bandwidth`, `assert_not_slower`, `measure`."""
    from collbench.testing.network import NetworkTest

    yield NetworkTest(request)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each test measured."""
    reports = [report for found in terminalreporter.stats.values() for report in found if isinstance(report, pytest.TestReport)]
    lines = [
        f"{report.nodeid}: {value}"
        for report in sorted(reports, key=lambda each: each.nodeid)
        if report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("collbench", sep="=")
        for line in lines:
            terminalreporter.line(line)
