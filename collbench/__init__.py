"""collbench: is the network as fast as what you paid for, and did the last upgrade make it worse?"""

try:
    from collbench._version import COMMIT as COMMIT
    from collbench._version import __version__ as __version__
except ImportError:  # a checkout: only what setup.py builds has that file
    __version__, COMMIT = "0.1.0.dev0", ""  # fallback_version in pyproject.toml is the same
