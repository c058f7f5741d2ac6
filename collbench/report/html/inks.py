"""The colours of drawings: placeholders, which become variables of the page's style."""

from __future__ import annotations

INK, SOFT, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
LIMIT, BOUND, BAD = "#050505", "#060606", "#070707"  # the ring reference, the hard limit, what is wrong
SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04")
NAMES = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper", LIMIT: "limit", BOUND: "bound", BAD: "bad",
         **{color: f"series-{number}" for number, color in enumerate(SERIES)}}  # fmt: skip
