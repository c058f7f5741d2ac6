"""How torch is loaded: without looks for garbage meanwhile, and exempt from them afterwards."""

import gc
import sys
from types import ModuleType

import pytest

from collbench.backends.on_torch import load_torch


@pytest.mark.parametrize("looked", [True, False])
def test_the_collector_is_as_it_was_and_looks_at_torch_no_more(monkeypatch, looked):
    torch, calls = ModuleType("torch"), []
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("enable", "disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(gc, "isenabled", lambda: looked)
    assert load_torch() is torch
    assert calls == ["disable", *(["enable"] if looked else []), "freeze"]


def test_where_it_does_not_load_the_collector_looks_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError):
        load_torch()
    assert gc.isenabled()
