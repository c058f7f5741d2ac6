"""Backends: one module per communication library, with the common contract and the registry."""
