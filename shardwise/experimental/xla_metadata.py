"""jax.experimental.xla_metadata: attributes of ops that XLA keeps, for its passes and for tools that read HLO."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import Any, final

from shardwise import tree
from shardwise.base.config import config
from shardwise.base.lazy import publish
from shardwise.compiler.trace.tracer import Tracer


def set_xla_metadata(x: Any = None, **kwargs: object) -> Any:
    """Attach attributes to the ops of a part of a program, or to the ops that compute some values.

    `with set_xla_metadata(name=value): …` attaches them to the ops that are traced inside, and
    `@set_xla_metadata(name=value)` to those of a function. `set_xla_metadata(x, name=value)` attaches them to the ops
    whose results are the leaves of `x`. Ops of derivatives have the attributes of the ops that they belong to.

    Args:
        x: a pytree of values; None for a context or a decorator.
        **kwargs: the attributes. Values are converted to strings, those of booleans to "true" and "false".

    Returns:
        `x`, or without it an object for `with` and `@`.

    Raises:
        Nothing.

    Example:
        >>> def double(x):
        ...     with jax.experimental.xla_metadata.set_xla_metadata(mark="here"):
        ...         return x * 2
        >>> '"mark" = "here"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    attributes = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in kwargs.items()}
    if x is None:
        return _MetadataContext(attributes)
    for leaf in tree.leaves(x):
        equation = leaf.made_by if isinstance(leaf, Tracer) else None  # arrays and inputs have no op to attach them to
        if equation is not None:
            source = equation.source
            equation.source = source._replace(metadata=_merged(source.metadata, attributes))
    return x


def _merged(metadata: str, attributes: Mapping[str, str]) -> str:
    """Return metadata with some attributes added or replaced."""
    merged = {**(json.loads(metadata) if metadata else {}), **attributes}
    return json.dumps(merged, sort_keys=True) if merged else ""


@final
class _MetadataContext:
    """A part of a program whose ops have attributes, as a context and as a decorator."""

    def __init__(self, attributes: Mapping[str, str]):
        self._attributes = attributes
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        override = config.override("xla_metadata", _merged(config.xla_metadata, self._attributes))
        override.__enter__()
        self._entered.append(override)

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(None, None, None)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _Annotated(function, self._attributes)


@final
class _Annotated:
    """A function whose ops have attributes. Its methods, such as `lower` of a jitted function, have them too."""

    def __init__(self, function: Callable[..., Any], attributes: Mapping[str, str]):
        self._function, self._attributes = function, attributes
        update_wrapper(self, function)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        with _MetadataContext(self._attributes):
            return self._function(*args, **keywords)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._function, name)
        return _Annotated(attribute, self._attributes) if callable(attribute) else attribute


publish(__name__)
