"""The former name of collbench.operations.case, for plug-ins; to be removed in 0.3."""

from collbench.operations.case import Case as Cell

__all__ = ["Cell"]
