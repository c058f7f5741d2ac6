"""Files of other tools for `collbench.read`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collbench.plugins.importers.files import read_tables, user_input
from collbench.plugins.importers.store import store, together
from collbench.untrusted import uncollected


def read_files(
    files: Sequence[Path],
    folder: Path,
    *,
    format: str | None,
    ranks: int | None,
    nodes: int | None,
    operation: str | None,
    dtype: str | None,
) -> list[Path]:
    """Import the files into run folders below a folder, as `collbench import` does; return the run folders. Raises UsageError."""
    with uncollected():
        tables = read_tables(files, user_input(ranks, nodes, operation, dtype), format)
        name = re.sub(r"[^\w.+-]", "_", files[0].name)[:80].strip(".") or "imported"
        return store(together(tables), folder / name, ["import", *map(str, files)], None, None)
