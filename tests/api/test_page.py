"""The page of the API has every exported name, method and column."""

from __future__ import annotations

import inspect
import re

import collbench
from collbench.api import frames
from site_pages import reference_pages
from site_pages.api import FUNCTIONS

PAGE = reference_pages()["reference/api.md"]


def test_all_exported_names_are_described() -> None:
    for name in FUNCTIONS:
        own = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        parameters = inspect.signature(getattr(collbench, name)).parameters
        assert parameters and all(re.sub("[\"']", "", f"    {each},\n") in own for each in parameters.values())
        assert all(f"`{each}`" in own for each in parameters)
    described = {*FUNCTIONS, "Runs", *re.findall(r"^\| `(\w+)` \| `\d` \|", PAGE, re.MULTILINE), "__version__"}
    assert described == set(collbench.__all__)


def test_all_methods_and_columns_are_described() -> None:
    methods = {name for name, found in vars(collbench.Runs).items() if inspect.isfunction(found) and not name.startswith("_")}
    assert all(f"| `{name}(" in PAGE for name in methods)
    for name, columns in frames.columns_of().items():
        own = PAGE.partition(f"### Runs.{name}()\n")[2].partition("\n### ")[0]
        assert re.findall(r"^\| `(\w+)` \|", own, re.MULTILINE) == list(columns)
