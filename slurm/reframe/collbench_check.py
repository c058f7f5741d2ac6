"""A ReFrame check: is the network as slow as its baseline explains, or slower?

    reframe -c collbench_check.py -r -S CollbenchGate.baseline=/shared/collbench/good

Three tests, one for each strike, each in a job of its own. The first measures the suite; where nothing is suspected it passes and the
others are skipped. Else the second measures the suspects alone, and the third; what exceeds its limit in all three is a regression. A test
fails where the verdict in its verdict.json is one: regression, wrong data, or none at all. The performance that ReFrame logs is, for each
group of cases, that of the case nearest to its limit: (median of the baseline, -limit, None, 'GB/s').

`collbench` and the baseline have to be seen from the nodes. To edit: num_tasks and num_tasks_per_node as when the baseline was made.
"""

import json
import re
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable

CASE = re.compile(r"(?P<operation>\S+) (?:(?P<size>[\d.]+) (?P<unit>[KMGT]?i?B) )?(?P<backend>\S+)")
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


@rfm.simple_test
class CollbenchGate(rfm.RunOnlyRegressionTest):
    """A strike: an allocation that is measured, and judged together with those before it."""

    strike = parameter([1, 2, 3])
    baseline = variable(str)  # -S: the folder of good allocations
    suite = variable(str, value="gate")
    launches = variable(int, value=5)
    program = variable(str, value="collbench")
    options = variable(str, value="")  # more of `collbench gate`: --expect FILE, --min-percent FLOOR

    valid_systems = ["*"]  # noqa: RUF012 (ReFrame's way)
    valid_prog_environs = ["*"]  # noqa: RUF012
    num_tasks = 2
    num_tasks_per_node = 1
    exclusive_access = True
    time_limit = "2h"

    @run_after("init")
    def follow_the_earlier_strikes(self) -> None:
        """Each strike waits for those before it."""
        for number in range(1, self.strike):
            self.depends_on(self.name_of_strike(number))

    @run_after("setup")
    def measure_what_is_suspected(self) -> None:
        """Skips a strike that has nothing to confirm."""
        self.allocations = [Path(self.getdep(self.name_of_strike(n)).stagedir) / "allocation" for n in range(1, self.strike)]
        if self.allocations:
            suspects = self.allocations[-1].parent / "suspects.toml"
            self.skip_if(not suspects.exists(), "nothing is suspected")
            self.suite = str(suspects)

    @run_before("run")
    def launch_and_judge(self) -> None:
        """The job: all launches, the last of them as ReFrame's executable; then the verdict on all allocations so far."""
        start = self.job.launcher.run_command(self.job)
        measure = ["run", self.suite, "--quiet", "--out"]
        self.executable = self.program
        self.executable_opts = [*measure, f"allocation/launch-{self.launches}"]
        self.prerun_cmds = [" ".join([start, self.program, *measure, f"allocation/launch-{n}"]) for n in range(1, self.launches)]
        judge = f"{self.program} gate --baseline {self.baseline} --out verdict.json --confirm-suite suspects.toml {self.options}"
        self.postrun_cmds = [
            " ".join([judge, *map(str, self.allocations), "allocation"]),
            f"{self.program} report allocation --format json >rows.jsonl",
        ]
        self.keep_files = ["verdict.json", "rows.jsonl", "allocation"]

    @sanity_function
    def passes_or_waits_for_the_next_strike(self) -> object:
        """Return the verdict; with suspects left, pass, because the next allocation decides."""
        stage = Path(self.stagedir)
        exists = sn.assert_true((stage / "verdict.json").exists(), "no verdict: see `collbench gate` in the job's error output")
        if not exists or (self.strike < 3 and (stage / "suspects.toml").exists()):
            return exists
        verdict = json.loads((stage / "verdict.json").read_text())
        confirmed = [each["name"] for each in verdict["suspicions"] if each["state"] == "confirmed"]
        why = "; ".join([verdict["result"], *confirmed, *verdict["reasons"]])
        return sn.assert_eq(verdict["result"], "passed", why.replace("{", "(").replace("}", ")"))

    @run_before("performance")
    def show_each_groups_worst_case(self) -> None:
        """Rates for ReFrame's log, with their references."""
        if self.strike > 1:
            return
        stage = Path(self.stagedir)
        rows = [json.loads(line) for line in (stage / "rows.jsonl").read_text().splitlines()]
        groups = json.loads((stage / "verdict.json").read_text())["groups"]
        found = {re.sub(r"\W+", "_", each["name"]): (each, busbw_of(each["worst"], rows)) for each in groups}
        rates = {name: (group, rate) for name, (group, rate) in found.items() if rate}
        self.perf_variables = {name: sn.make_performance_function(sn.defer(rate), "GB/s") for name, (_, rate) in rates.items()}
        self.reference = {"*": {name: reference_of(group, rate) for name, (group, rate) in rates.items()}}

    @classmethod
    def name_of_strike(cls, number: int) -> str:
        """The test's name, as dependencies want it."""
        return cls.variant_name(cls.get_variant_nums(strike=number)[0])


def busbw_of(name: str | None, rows: list[dict[str, Any]]) -> float | None:
    """GB/s of the case of this name; None where there is none, it moves nothing, or several are called so (modes)."""
    case = CASE.fullmatch(name or "")
    if not case or not case["size"]:
        return None
    wanted = (case["operation"], case["backend"], float(case["size"]) * UNITS[case["unit"]])
    found = [row for row in rows if (row["operation"], row["backend"], row["size_bytes"]) == wanted]
    return found[0]["busbw_bytes_per_s"] / 1e9 if len(found) == 1 and found[0]["busbw_bytes_per_s"] else None


def reference_of(group: dict[str, Any], rate: float) -> tuple[float, float | None, float | None, str]:
    """The baseline's median, and how far below it may be by chance; what is suspected fails only where the verdict confirms it."""
    within = group["state"] == "passed" and group["worst_limit"] is not None
    return rate * group["worst_factor"], 1 / group["worst_limit"] - 1 if within else None, None, "GB/s"
