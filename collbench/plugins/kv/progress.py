"""Progress of a run of block transfers, and its table at the end."""

from __future__ import annotations

import sys
from pathlib import Path

from collbench.report.progress import RecordsProgressPrinter
from collbench.report.screen import wants_color


class KvProgressPrinter(RecordsProgressPrinter):
    """The listener of a run of block transfers: its table at the end. Use it in a `with`, as `ProgressPrinter`."""

    def end(self) -> None:
        """Print the rows, and the run's folder."""
        from collbench.plugins.kv.text import BLOCK_TRANSFERS, sorted_rows
        from collbench.report.forms import write

        self.close()
        color, name = wants_color(sys.stdout, self._arguments.color), Path(self._folder).name
        format, quiet = self._arguments.format, self._arguments.quiet
        write(BLOCK_TRANSFERS, sorted_rows(self._rows), format, sys.stdout, color=color, run=name, quiet=quiet)
        sys.stdout.flush()
        super().end()
