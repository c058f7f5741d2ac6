"""Load the recorder into a Python process that imports torch.distributed; every other process runs as without it.

`collbench trace` puts a copy of this folder first on PYTHONPATH, so that each Python process of a job runs this file at its start. It
uses the standard library only, of any Python since 3.8: the job's environment need not have collbench.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from os import path
from types import ModuleType
from typing import Any

_HERE = path.dirname(path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would make every start of Python slower
_MODULE = "torch.distributed.distributed_c10d"


class _Finder(MetaPathFinder):
    """Finds one module of torch, and installs the recorder in it after its import."""

    def find_spec(self, name: str, places: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module's spec with a loader that installs the recorder; None for every other module."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, places)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_install(module: ModuleType) -> None:
                execute(module)
                _load("_collbench_recorder").install(module)

            setattr(spec.loader, "exec_module", and_install)  # noqa: B010  a method of this one loader
        return spec


def _load(name: str) -> Any:
    """Return a module of this folder. The folder is not on sys.path then, so that its names hide none of the job's."""
    spec = spec_from_file_location(name, path.join(_HERE, name + ".py"))  # noqa: PTH118
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _run_next() -> None:
    """Run the sitecustomize that this file hides, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [place for place in sys.path if path.abspath(place or ".") != _HERE]  # noqa: PTH100
sys.meta_path.insert(0, _Finder())
_run_next()
