"""Every output shows every verdict that fits the schema."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import ValidationError

from collbench.gating.verdict import from_json, schema
from collbench.records import document
from collbench.report.verdict_formats import junit, markdown, openmetrics, verdict_lines
from tests.gate.verdicts import regression
from tests.report.verdict.hostile import NASTY

VALUES = st.sampled_from([None, 0, 1, 1e-99, 1e99, 2**62, "", NASTY, "no verdict", [], [None], [1e99, 1e-99], [NASTY], {}])
FITS = Draft202012Validator(schema())


@given(st.lists(st.tuples(st.integers(0), st.integers(0), VALUES), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_output_holds_any_verdict(changes: list[tuple[int, int, Any]]) -> None:
    page: dict[str, Any] = json.loads(json.dumps(document(regression())))
    for where, which, value in changes:
        places = [page, *page["groups"], *page["suspicions"], *page["floors"], *page["changes"]]
        place = places[where % len(places)]
        name = sorted(place)[which % len(place)]
        before, place[name] = place[name], value
        if not FITS.is_valid(page):
            place[name] = before
    try:
        actual = from_json(page)
    except ValidationError:  # 1e99 allocations fit the schema, but not an integer
        return
    for format, style in (("table", "collbench"), ("table", "nagios"), ("github", "prolog"), ("json", "collbench")):
        assert all(line.text.isprintable() for line in verdict_lines(actual, format, style))
    assert all(len(made(actual)) > 100 for made in (junit, markdown, openmetrics))
