"""The picture of a dashboard in the guide is what the dashboard's queries return for the runs of the gallery."""

from __future__ import annotations

import os
from xml.etree import ElementTree

import pytest

from collbench.plugins.store.dashboard_page import dashboard_picture, read_dashboard, value_text
from collbench.plugins.store.dashboards import OPERATION
from collbench.plugins.store.database import open_store
from collbench.plugins.store.writing import Writer, sync
from tests.conftest import ROOT, cannot
from tests.store.postgresql import NoServer, server

PICTURE = ROOT / "reports" / "dashboards" / "operation.svg"


@pytest.mark.in_turn("dashboards")
def test_the_picture_of_the_guide_is_that_of_the_stored_runs() -> None:
    try:
        with server() as running:
            database = open_store(running.url, write=True)
            assert not sync(Writer(database), [ROOT / "reports" / "regression"]).refused
            text = dashboard_picture(OPERATION, *read_dashboard(OPERATION, database))
            database.close()
    except NoServer as why:
        cannot(why)
    if os.environ.get("COLLBENCH_GOLDEN"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(text, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == text
    ElementTree.fromstring(text)


@pytest.mark.parametrize(("value", "unit", "text"), [
    (42e9, "Bps", "42.0 GB/s"), (1.235e-5, "s", "12.35 µs"), (93784.0, "s", "26 h 03 min"), (0.63, "percentunit", "63 %"),
    (1.4e9, "hertz", "1400 MHz"), (1.7635e12, "dateTimeFromNow", "2025-11-18 21:06"), (None, "s", "–"), ("a\x1b[0m", "short", "a?[0m"),
])  # fmt: skip
def test_a_value_is_shown_in_its_unit(value: object, unit: str, text: str) -> None:
    assert value_text(value, unit) == text
