"""The plug-in for pytest, in sessions of pytest of their own: measurements, assertions, reports, options, and bad input."""

import inspect
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import collbench.api.functions
import collbench.api.measurement  # noqa: F401 - once, instead of in each session
from collbench.analysis.compare import CaseRatio
from collbench.report.bencher import case_name
from collbench.results.row import Times
from collbench.stats.launches import Ratio
from collbench.testing.network import BandwidthCheck, NetworkTest, TimeCheck
from collbench.testing.plugin import INCONCLUSIVE, OUT
from tests.cli.command import EMPTY, ROOT
from tests.results.rows import make_row, not_measured, store
from tests.stored import stored_reports

pytest_plugins = ["pytester"]
_INSTALLED = any(each.name == "collbench" for each in entry_points(group="pytest11"))  # pytest then loads the plug-in by itself
PLUGIN = (
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    *(() if _INSTALLED else ("-p", "collbench.testing.plugin")),
)
SIMULATED = "operation='allreduce', sizes='8,1M', backend='simulated', ranks=4, iterations=5"


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a session of pytest with the plug-in and a marker that the tests of collbench do not need."""
    monkeypatch.setenv("COLLBENCH_CONFIG", str(EMPTY))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\naddopts = --strict-markers")
    return pytester


def outcomes(session: pytest.Pytester, text: str, *words: str) -> tuple[dict[str, int], str]:
    """The outcomes of a session that runs this test file, and what it printed."""
    session.makepyfile(text)
    done = session.runpytest_inprocess(*PLUGIN, "-rA", *words)
    return done.parseoutcomes(), done.stdout.str()


# What an assertion decides.


def times(low: float | None, high: float | None) -> Times:
    return Times(2.4e-3, low, high, 2e-3, 3e-3, 3e-3, 3e-3)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "passed"),
        ({"percent_of_ceiling": 79.0}, "failed"),
        ({"percent_of_ceiling": 80.1}, "inconclusive"),  # 79.3 to 80.9 %
        ({"percent_of_ceiling": 79.9}, "inconclusive"),
        ({"percent_of_ceiling": 80.1, "time_s": times(None, None)}, "passed"),
        ({"percent_of_ceiling": 79.9, "time_s": times(None, None)}, "failed"),
        ({"percent_of_ceiling": None}, "inconclusive"),
        ({"flags": ("clock_stepped",)}, "inconclusive"),
        ({"wrong": 1}, "failed"),
        ({"wrong": 1, "percent_of_ceiling": None}, "failed"),
    ],
)
def test_a_row_passes_only_if_its_whole_interval_does(changes: dict[str, Any], state: str) -> None:
    row = make_row(1 << 20, **{"time_s": times(2.376e-3, 2.424e-3), **changes})
    assert BandwidthCheck.of(row, 0.8).state == state


def test_an_unavailable_row_is_inconclusive() -> None:
    assert BandwidthCheck.of(not_measured("no library"), 0.8).state == "inconclusive"


def test_the_interval_of_the_bandwidth_is_that_of_the_time_reversed() -> None:
    check = BandwidthCheck.of(make_row(1 << 20, percent_of_ceiling=80.0, time_s=times(2e-3, 3e-3)), 0.8)
    assert (check.low, check.share, check.high) == (pytest.approx(0.64), 0.8, pytest.approx(0.96))


# Sessions on stored runs.

READ = "import collbench as api\n"


def test_assertions_about_a_stored_run(session: pytest.Pytester, tmp_path: Path) -> None:
    store(session.path / "run", [make_row(8, percent_of_ceiling=0.1, busbw_bytes_per_s=1e6), make_row(1 << 20)])
    found, text = outcomes(session, READ + """
def test_the_best_one(collbench): collbench.assert_bandwidth(0.8, runs=api.read("run"))
def test_large_ones(collbench): collbench.assert_bandwidth(at_least=0.8, from_size="64K", runs=api.read("run"))
def test_all(collbench): collbench.assert_bandwidth(at_least=0.8, from_size=1, runs=api.read("run"))
def test_too_much(collbench): collbench.assert_bandwidth(at_least=0.9, runs=api.read("run"))
def test_near(collbench): collbench.assert_bandwidth(at_least=0.84, runs=api.read("run"))
def test_none(collbench): collbench.assert_bandwidth(at_least=0.8, from_size="1G", runs=api.read("run"))
def test_not_a_share(collbench): collbench.assert_bandwidth(at_least=80, runs=api.read("run"))
""")  # fmt: skip
    assert found == {"passed": 2, "failed": 3, "skipped": 2}
    assert (
        "AssertionError: allreduce 1 MiB over nccl: 84 % (95 % CI 83 % to 85 %), required at least 90 % of the expected bandwidth" in text
    )
    assert "collbench: at_least=80: not a valid share (use a number above 0, such as 0.8 for 80 %)" in text


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(1.06, 1.2, "failed"), (1.01, 1.04, "passed"), (1.01, 1.2, "inconclusive"), (None, None, "inconclusive")],
)
def test_a_case_is_slower_only_if_its_whole_interval_is(low: float | None, high: float | None, state: str) -> None:
    case = CaseRatio(make_row(), make_row(), Ratio(1.1, low, high, 3), True, (None, None), (3, 3), 0.05)
    assert TimeCheck(case, 0.05).state == state


def test_one_launch_each_decides_nothing() -> None:
    case = CaseRatio(make_row(), make_row(), Ratio(1.1, 1.06, 1.2, 3), False, (None, None), (1, 1), 0.05)
    assert TimeCheck(case, 0.05).state == "inconclusive"
    assert TimeCheck(replace(case, scatter=4), 0.05).state == "failed"


@pytest.mark.parametrize(
    ("words", "outcome"), [([], "skipped"), ([f"{INCONCLUSIVE}=skip"], "skipped"), ([f"{INCONCLUSIVE}=fail"], "failed")]
)
def test_the_option_decides_what_is_inconclusive(session: pytest.Pytester, words: list[str], outcome: str) -> None:
    store(session.path / "run", [make_row(1 << 20, percent_of_ceiling=None)])
    test = READ + "def test_it(collbench): collbench.assert_bandwidth(0.8, runs=api.read('run'))\n"
    found, text = outcomes(session, test, *words)
    assert found == {outcome: 1}
    assert "inconclusive: allreduce 1 MiB over nccl: no expected bandwidth is known" in text


def test_a_withheld_percentage_has_its_reason() -> None:
    row = make_row(1 << 20, percent_of_ceiling=None, flags=("reference_disturbed", "simulated"))
    assert BandwidthCheck.of(row, 0.8).render() == "allreduce 1 MiB over nccl: no percentage (reference disturbed)"


def test_not_slower_than_a_stored_run(session: pytest.Pytester) -> None:
    for name, time_s in (("base", 2.4e-3), ("same", 2.41e-3), ("slow", 3.0e-3)):
        row = make_row(1 << 20, time_s=Times(time_s, 0.999 * time_s, 1.001 * time_s, time_s, time_s, time_s, time_s))
        for launch in (1, 2, 3):
            store(session.path / name / f"launch-{launch}", [row], allocation_id=name, launch_index=launch - 1)
    store(session.path / "other", [make_row(8, backend="mpi")])
    found, text = outcomes(session, READ + """
def test_same(collbench): collbench.assert_not_slower("base", runs=api.read("same"))
def test_slow(collbench): collbench.assert_not_slower("base", runs=api.read("slow"))
def test_margin(collbench): collbench.assert_not_slower("slow", runs=api.read("base"))
def test_other(collbench): collbench.assert_not_slower("other", runs=api.read("base"))
def test_missing(collbench): collbench.assert_not_slower("missing", runs=api.read("base"))
""")  # fmt: skip
    assert found == {"passed": 2, "failed": 3}
    assert "AssertionError: allreduce 1 MiB over nccl: time +25.0 % (95 % CI +25.0 % to +25.0 %), allowed +5.0 %" in text


TRIALS = stored_reports() / "gate-trials"


@pytest.fixture
def trial() -> Path:
    """The runs of a trial with a slow link, by allocation."""
    return TRIALS / "link-0/runs"


def test_the_gate_judges_against_a_baseline(session: pytest.Pytester, trial: Path) -> None:
    good, allocations = str(TRIALS / "baseline-link"), sorted(map(str, trial.iterdir()))
    found, text = outcomes(session, READ + f"""
def test_all(collbench): collbench.assert_not_slower({good!r}, runs=api.read(*{allocations!r}))
def test_one(collbench): collbench.assert_not_slower({good!r}, runs=api.read({allocations[0]!r}))
""")  # fmt: skip
    assert found == {"failed": 1, "skipped": 1}
    assert "AssertionError: regression: " in text


# Sessions that measure.


@pytest.mark.system
@pytest.mark.often
@pytest.mark.long
def test_the_marker_measures_and_the_report_has_the_rows(session: pytest.Pytester) -> None:
    found, text = outcomes(session, f"""
import pytest
@pytest.mark.collbench({SIMULATED})
def test_network(collbench, tmp_path):
    (run,) = collbench.runs
    assert run.path == tmp_path / "collbench-1" and len(run.rows) == 2
    assert collbench.runs is collbench.runs
""", "--junitxml", "report.xml")  # fmt: skip
    assert found == {"passed": 1}
    summary = text.partition("= collbench =")[2]
    assert "test_network: allreduce 1 MiB over simulated: " in summary
    (case,) = ET.parse(session.path / "report.xml").getroot().iter("testcase")
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    (run,) = [value for name, value in properties.items() if name == "collbench run"]
    rows = import_module("collbench").read(Path(str(run))).rows
    assert {f"{case_name(row)} median_s" for row in rows} <= set(properties)
    assert {float(properties[f"{case_name(row)} busbw_bytes_per_s"] or 0) for row in rows} == {row.busbw_bytes_per_s for row in rows}


@pytest.mark.long
def test_the_runs_are_kept_in_the_folder_of_the_option(session: pytest.Pytester) -> None:
    test = f"""
def test_network(collbench):
    assert len(collbench.measure({SIMULATED.replace("8,1M", "8")}).rows) == 1
"""
    for _ in range(2):  # a second session does not replace the runs of the first one
        assert outcomes(session, test, f"{OUT}=kept")[0] == {"passed": 1}
    name = "test_the_runs_are_kept_in_the_folder_of_the_option.py_test_network"
    assert sorted(each.name for each in (session.path / "kept").iterdir()) == [f"{name}-1", f"{name}-2"]


@pytest.mark.system
def test_bad_input_is_one_sentence(session: pytest.Pytester) -> None:
    found, text = outcomes(session, """
import pytest
@pytest.mark.collbench("allreduce", backend="missing")
def test_backend(collbench): collbench.runs
@pytest.mark.collbench("allreduce", size="8")
def test_option(collbench): collbench.runs
@pytest.mark.collbench("allsum")
def test_operation(collbench): collbench.runs
def test_no_marker(collbench): collbench.runs
""")  # fmt: skip
    assert found == {"failed": 4}
    assert "Traceback" not in text and "During handling" not in text
    for problem in ("collbench: backend 'missing' is unknown", "argument 'size'", "collbench: unknown operation 'allsum'", "has no marker"):
        assert problem in text


def test_a_test_with_the_marker_and_without_the_fixture_fails_and_others_run(session: pytest.Pytester) -> None:
    found, text = outcomes(session, f"""
import pytest, unittest
@pytest.mark.collbench({SIMULATED})
def test_network(): pass
@pytest.mark.collbench({SIMULATED})
class TestNetwork(unittest.TestCase):
    def test_method(self): pass
def test_other(): pass
""")  # fmt: skip
    assert found == {"failed": 2, "passed": 1}
    assert text.count("has the marker 'collbench', but not the fixture") >= 2 and "Traceback" not in text


@pytest.mark.long
def test_the_example_of_the_guide(session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_MAX_TIME", "0.2")
    (example,) = re.findall(r"```python\n# test_network.py\n(.*?)```", (ROOT / "docs/guides/test-suite.md").read_text(), re.DOTALL)
    for limit, wide in (("at_least=0.2", "at_least=0.0001"), ("< 1e-3", "< 10")):  # of this machine, which other tests use, too
        assert limit in example
        example = example.replace(limit, wide)
    found, text = outcomes(session, example, f"{OUT}=runs")
    assert found in ({"passed": 2}, {"passed": 1, "skipped": 1}), text  # the reference may be disturbed by other tests
    assert len(list((session.path / "runs").iterdir())) == 2


# Sessions of others.


@pytest.mark.system
def test_the_plug_in_imports_nothing_before_it_is_used() -> None:
    code = "import sys, pytest; before = set(sys.modules); import collbench.testing.plugin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    own = {"collbench", "collbench._version", "collbench.testing", "collbench.testing.plugin"}
    assert {name for name in loaded if name.startswith("collbench")} <= own
    assert not {name.partition(".")[0] for name in loaded - own} & {"numpy", "msgspec", "rich", "zmq", "pandas", "torch"}


def test_sessions_without_a_measurement_have_no_section(session: pytest.Pytester) -> None:
    found, text = outcomes(session, "def test_it(): pass\n")
    assert (found, "= collbench =" in text) == ({"passed": 1}, False)


def test_the_reference_has_every_option_method_and_argument() -> None:
    text = (ROOT / "docs/reference/pytest.md").read_text()
    assert all(f"| `{option}=" in text for option in (INCONCLUSIVE, OUT))
    methods = {name: value for name, value in vars(NetworkTest).items() if inspect.isfunction(value) and not name.startswith("_")}
    for name, method in methods.items():
        arguments = list(inspect.signature(method).parameters)[1:]
        (row,) = re.findall(rf"^\| `{name}\((.*?)\)` \|", text, re.MULTILINE)
        assert [each.lstrip("*") for each in row.split(", ") if each != "*"] == arguments
        assert all(f"| `{each}` |" in text for each in arguments if name != "measure")


def test_an_installation_has_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module = project["entry-points"]["pytest11"]["collbench"]
    assert import_module(module).pytest_addoption
    assert project["optional-dependencies"]["pytest"] == ["pytest>=8"]
