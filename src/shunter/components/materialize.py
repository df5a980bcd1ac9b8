"""Calling a component from Python, under the predecessor's names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shunter.components.component import Component
from shunter.specs.app import AppDef


class ComponentArgs(NamedTuple):
    """The arguments of a call: positional ones, those of ``*args``, and keyword-only ones."""

    positional_args: dict[str, Any]
    var_args: list[Any]
    kwargs: dict[str, Any]


def materialize_appdef(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """Make the job of a component. The command line overrides ``config``, that ``cmpnt_defaults``.

    Defaults that are for no parameter have no effect, as in TorchX.

    Raises:
        ComponentArgumentError: arguments are unknown, missing or of the wrong type.
    """
    component = _component(cmpnt_fn)
    return component.parse(cmpnt_args, _defaults(component, cmpnt_defaults, config))


def component_args_from_str(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_args_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> ComponentArgs:
    """Return the arguments that `materialize_appdef` calls the component with."""
    component = _component(cmpnt_fn)
    values = component.bind(cmpnt_args, _defaults(component, cmpnt_args_defaults, config))
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    rest: list[Any] = []
    for parameter in component.parameters:
        if parameter.is_varargs:
            rest = list(values[parameter.name])
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[parameter.name] = values[parameter.name]
        else:
            positional[parameter.name] = values[parameter.name]
    return ComponentArgs(positional, rest, keywords)


def _defaults(component: Component, *layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the defaults of parameters, the last ones first; those of other names are left out."""
    known = {parameter.name for parameter in component.parameters}
    return {name: value for layer in layers for name, value in (layer or {}).items() if name in known}


def _component(fn: Callable[..., AppDef]) -> Component:
    return Component(fn.__name__, fn, origin=fn.__module__)
