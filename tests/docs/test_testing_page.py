"""The page on testing: every test that it names exists."""

from __future__ import annotations

import re

from collbench.plugin import plugins
from tests.cli.command import ROOT


def test_the_tests_of_each_defect_of_the_page_exist() -> None:
    text = (ROOT / "docs/develop/testing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", text, re.MULTILINE)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 13)]
    for _, tests in rows:
        for entry in tests.split(";"):
            file, *names = re.findall(r"`([^`]+)`", entry)
            folder, _, inside = file.partition("/")
            if folder == "plugins" and inside.partition("/")[0] not in plugins():
                continue
            code = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert [name for name in names if not re.search(rf"\b(?:def|class) {name}\b", code)] == []
