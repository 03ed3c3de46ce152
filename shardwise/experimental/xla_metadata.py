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


def xla_metadata_call(f: Callable[..., Any] | None = None, /, **meta: object) -> Callable[..., Any]:
    """Attach attributes to the ops of a function, and to those of its derivatives.

    JAX attaches them to one call, and XLA passes them on to the ops; here each op has them from the start.

    Args:
        f: the function; None to use it as a decorator.
        **meta: the attributes, as for `set_xla_metadata`.

    Returns:
        The function, or a decorator.

    Raises:
        Nothing.

    Example:
        >>> double = jax.experimental.xla_metadata.xla_metadata_call(lambda x: x * 2, mark="here")
        >>> '"mark" = "here"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    decorate: Callable[..., Any] = set_xla_metadata(**meta)
    return decorate if f is None else decorate(f)


def xla_metadata_call2(
    f: Callable[..., Any] | None = None,
    /,
    metadata: Mapping[str, object] | None = None,
    *,
    ad_metadata: str | Mapping[str, object] = "same",
) -> Callable[..., Any]:
    """Attach attributes to the ops of a function, as `xla_metadata_call` does.

    Args:
        f: the function; None to use it as a decorator.
        metadata: the attributes.
        ad_metadata: the attributes of derivatives: "same", which is all that is supported.

    Returns:
        The function, or a decorator.

    Raises:
        NotImplementedError: if `ad_metadata` is not "same".

    Example:
        >>> double = jax.experimental.xla_metadata.xla_metadata_call2(lambda x: x * 2, {"mark": "here"})
        >>> '"mark" = "here"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    if ad_metadata != "same":
        raise NotImplementedError(
            f"xla_metadata_call2: ad_metadata={ad_metadata!r} is not supported: ops of derivatives have the attributes "
            "of the ops that they belong to"
        )
    return xla_metadata_call(f, **(metadata or {}))


def must_fuse_call(identifier: str) -> Callable[..., Any]:
    """Return a decorator that asks XLA to fuse all ops of a function, by the attribute `MUST_FUSE`.

    Args:
        identifier: the number of the fusion.

    Returns:
        The decorator.

    Raises:
        Nothing.

    Example:
        >>> f = jax.experimental.xla_metadata.must_fuse_call("1")(lambda x: jnp.square(x).sum())
        >>> '"MUST_FUSE" = "1"' in jax.jit(f).lower(jnp.ones(3)).as_text()
        True
    """
    return xla_metadata_call(MUST_FUSE=identifier)


def fuse_limit() -> AbstractContextManager[None]:
    """Return a context whose ops XLA does not fuse with others, by the attribute `FUSE_LIMIT`.

    Returns:
        The context.

    Example:
        >>> def double(x):
        ...     with jax.experimental.xla_metadata.fuse_limit():
        ...         return x * 2
        >>> '"FUSE_LIMIT" = "true"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    return _MetadataContext({"FUSE_LIMIT": "true"})


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
