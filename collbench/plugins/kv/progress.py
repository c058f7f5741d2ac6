"""Progress of a run of block transfers, and its table at the end."""

from __future__ import annotations

from collbench.report.progress import RecordsProgressPrinter


class KvProgressPrinter(RecordsProgressPrinter):
    """The listener of a run of block transfers: its table at the end. Use it in a `with`, as `ProgressPrinter`."""

    def end(self) -> None:
        """Print the rows, and the run's folder."""
        from collbench.plugins.kv.text import BLOCK_TRANSFERS

        self.close()
        self.write_records(BLOCK_TRANSFERS, self._rows)
        super().end()
