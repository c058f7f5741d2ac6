"""The lines around the rows in a log that other lines go into, too: what `collbench import` looks for."""

from __future__ import annotations

BEGIN = "----- collbench: rows begin -----"
END = "----- collbench: rows end, exit code"  # then the code, and five dashes
