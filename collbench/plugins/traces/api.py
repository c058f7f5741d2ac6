"""`collbench.autopsy` and `collbench.replay`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from collbench.api.measurement import Names, option_words, refuse_launcher, run_command
from collbench.api.runs import AnyPath, Runs, read
from collbench.api.shown import shown
from collbench.plugins.traces import autopsy_text as autopsy_report
from collbench.plugins.traces.autopsy import AutopsyVerdict
from collbench.plugins.traces.autopsy import autopsy as find_cause
from collbench.plugins.traces.reading import FOR_AUTOPSY, read_traces
from collbench.plugins.traces.replay_command import REPLAY_COMMAND
from collbench.report.frame import html_paragraph, html_text, printable
from collbench.results.folder import run_name
from collbench.untrusted import uncollected


class ShownAutopsy(AutopsyVerdict, frozen=True, tag=AutopsyVerdict.__struct_config__.tag):
    """An `AutopsyVerdict` that a notebook shows as a table of findings: `result`, `findings`, `culprits`, `exit_code` …"""

    def __repr__(self) -> str:
        """Return the verdict in one sentence."""
        return printable(f"<AutopsyVerdict: {self.render()}>")

    def _repr_html_(self) -> str:
        steps = [html_paragraph(autopsy_report.advice(finding)) for finding in self.findings]
        return "\n".join([html_paragraph(self.render()), html_text(autopsy_report.frame(self)), *steps])


def autopsy(*paths: AnyPath, ranks: int | None = None) -> AutopsyVerdict:
    """Return the cause of a hang or mismatch from the dumps of a job's ranks, as `collbench autopsy` does.

    paths  the dumps, or folders of them: of PyTorch's Flight Recorder, or traces of another format
    ranks  the number of ranks of the job, where the dumps do not contain it

    `result` is "nothing found", "cause found" or "inconclusive"; `culprits` has the ranks, and `findings` the evidence, the cause first.
    Raises UsageError for files that cannot be read, and for those of several jobs.
    """
    with uncollected():
        verdict = find_cause(read_traces((Path(path) for path in paths), FOR_AUTOPSY, without_damaged=True), ranks)
    return shown(verdict, ShownAutopsy)


def replay(
    traces: AnyPath | Sequence[AnyPath],
    *,
    step: int | Literal["first", "median", "all"] | None = None,
    compute: float | Literal["none", "gaps"] | None = None,
    ranks: int | None = None,
    backend: Names | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    iterations: int | None = None,
    warmup: int | None = None,
    precision: float | None = None,
    max_time: float | None = None,
    parts: bool = True,
    check: int | None = None,
    stop_on_wrong: bool = False,
    ceiling: float | None = None,
    oversubscription: float | None = None,
    seed: int | None = None,
    slowed: Names | None = None,
    oversubscribe: bool = False,
    timeout: float | None = None,
    allocation: str | None = None,
    out: AnyPath | None = None,
    trace: AnyPath | None = None,
) -> Runs:
    """Start the recorded number of ranks on this host, replay a step of a job, and return the stored run.

    traces   files and folders of the job's trace
    step     number of the step from 0, "first", "median" or "all"
    compute  "none", "gaps", or the factor of the recorded computing
    iterations   how many steps are measured
    parts    whether each operation is also measured alone

    The other arguments are the options of `collbench replay`. `Runs.workloads` has the result as a table, and `Runs.rows` a row of the
    step that `compare` and `gate` use. Raises UsageError and RunFailed as `measure` does, also for traces that cannot be replayed.
    """
    options = {name: value for name, value in locals().items() if name not in ("traces", "compute", "parts", "out")}
    refuse_launcher("replay", ranks)
    folder = Path("runs") / run_name("replay") if out is None else Path(out)
    options["no_parts"] = not parts
    options["compute"] = f"scale={compute}" if isinstance(compute, int | float) else compute
    words = [word for name, value in options.items() for word in option_words(name, value, REPLAY_COMMAND.declared)]
    paths = [traces] if isinstance(traces, str | os.PathLike) else list(traces)
    run_command(["replay", *words, f"--out={folder}", "--format=jsonl", "--quiet", "--", *(os.fspath(path) for path in paths)], folder)
    return read(folder)
