"""collbench: is the network as fast as the one you paid for, and did the last upgrade make it slower?

The Python API is `read`, `measure`, `replay`, `compare`, `gate`, `autopsy`, `peak`, `predict` and `probe`. It is imported when one of
them is first used, so that ranks and plain commands do without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.api.functions import compare as compare
    from collbench.api.functions import gate as gate
    from collbench.api.functions import peak as peak
    from collbench.api.functions import probe as probe
    from collbench.api.measurement import measure as measure
    from collbench.api.runs import Runs as Runs
    from collbench.api.runs import read as read
    from collbench.errors import CollbenchError as CollbenchError
    from collbench.errors import NoVerdict as NoVerdict
    from collbench.errors import RunFailed as RunFailed
    from collbench.errors import UnreadableRun as UnreadableRun
    from collbench.errors import UsageError as UsageError

try:
    from collbench._version import COMMIT as COMMIT
    from collbench._version import __version__ as __version__
except ImportError:  # a checkout: only what setup.py builds has that file
    __version__, COMMIT = "0.1.0.dev0", ""  # fallback_version in pyproject.toml is the same

_ERRORS = ("CollbenchError", "NoVerdict", "RunFailed", "UnreadableRun", "UsageError")
_PLACES = {
    "Runs": "collbench.api.runs",
    "compare": "collbench.api.functions",
    "gate": "collbench.api.functions",
    "measure": "collbench.api.measurement",
    "peak": "collbench.api.functions",
    "probe": "collbench.api.functions",
    "read": "collbench.api.runs",
    **dict.fromkeys(_ERRORS, "collbench.errors"),
}


def __getattr__(name: str) -> Any:
    """Return a name of the API, of the core or of a plug-in. Raises AttributeError for any other."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    from collbench.plugin import api, loaded

    if name == "__all__":
        return [*_PLACES, *(added for added in api() if "." not in added), "__version__"]
    if name not in api():
        raise AttributeError(f"module 'collbench' has no attribute '{name}'")
    return loaded(api()[name])


def __dir__() -> list[str]:
    """Return the names of the API, and what has been imported."""
    return sorted({*globals(), *__getattr__("__all__")})
