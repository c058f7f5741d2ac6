"""Strategies of Hypothesis for the parts of the machine model, each field with its default or any other value."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec.structs import fields

from collbench.machine import model


def _values(field: Any) -> st.SearchStrategy[Any]:
    values = st.from_type(field.type)
    if field.default is not msgspec.NODEFAULT:
        return st.just(field.default) | values
    if field.default_factory is not msgspec.NODEFAULT:
        return st.builds(field.default_factory) | values
    return values


def _strategy(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: st.builds(kind, **{field.name: _values(field) for field in fields(kind)}))


for _kind in vars(model).values():
    if isinstance(_kind, type) and issubclass(_kind, msgspec.Struct) and _kind.__struct_fields__:
        st.register_type_strategy(_kind, _strategy(_kind))

MACHINES: st.SearchStrategy[model.Machine] = st.from_type(model.Machine)
