"""Progress of a workload, and each training's table as soon as it is complete."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from collbench.report.progress import Output, ProgressPrinter

if TYPE_CHECKING:
    from collbench.measuring.session import Plan
    from collbench.plugins.training.records import StepRow


class WorkloadProgressPrinter(ProgressPrinter):
    """The listener of a workload run. Use it in a `with`, as `ProgressPrinter`."""

    def __init__(self, output: Output, request: Any = None) -> None:
        super().__init__(output, request)
        self._waiting: list[StepRow] = []
        self._printed = 0

    def begin(self, plan: Plan, folder: str) -> None:
        """Store what is known before the first step."""
        self._about = plan.facts["workload"]
        self._folder = folder

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line, or print one for the log."""
        if self._live:
            super().progress(text, done, total, eta_s)
        else:
            self.note(f"{done + 1} of {total}: {text}")

    def record(self, record: Any, place: int | None) -> None:
        """Print a row at once for programs; for people together with the other rows of its training."""
        self._waiting.append(record.replace(step_time_s=self._about.get("step_time_s")))
        if self._output.format != "table":
            self._print(1)
        elif not self._live:
            backends = len(self._about["backends"])
            self._print(len(self._waiting) // backends * backends)

    def end(self) -> None:
        """Print the remaining rows, and the run's folder."""
        self.close()
        self._print(len(self._waiting))
        super().end()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        self._print(len(self._waiting))  # the rows measured before the run stopped
        super().__exit__(kind, error, trace)

    def _print(self, count: int) -> None:
        """Print the first `count` waiting rows."""
        rows = self._waiting[:count]
        del self._waiting[:count]
        if rows:
            from collbench.plugins.training.text import STEPS

            self.write_records(STEPS, rows, headed=self._printed > 0)
            self._printed += len(rows)
