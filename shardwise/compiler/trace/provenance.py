"""Provenance of equations: the user's current source line, or the line of the equation that is being transformed.

A transformation that replays equations sets `provenance.source`, so that the equations it emits keep the user's line.
The partitioner also sets `provenance.reason`, the reason why it inserts an equation. `named_scope` sets
`provenance.scope`, the user's names for a part of the program; they are part of the sources of staged equations.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, final

from shardwise.base.call_site import user_frame
from shardwise.base.config import config
from shardwise.compiler.ir.program import NOWHERE, Reason, Source


class _Provenance(threading.local):
    def __init__(self) -> None:
        self.source: Source | None = None
        self.reason: Reason | None = None
        self.scope: tuple[str, ...] = ()


provenance = _Provenance()
_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextmanager
def use_scope(scope: tuple[str, ...]) -> Iterator[None]:
    """Replace the current named scopes inside a `with` block."""
    before, provenance.scope = provenance.scope, scope
    try:
        yield
    finally:
        provenance.scope = before


@contextmanager
def outside_scopes() -> Iterator[None]:
    """Leave all named scopes inside a `with` block, including the scopes of the equation that is being transformed."""
    before = provenance.scope, provenance.source
    provenance.scope = ()
    if provenance.source is not None:
        provenance.source = provenance.source._replace(scope=())
    try:
        yield
    finally:
        provenance.scope, provenance.source = before


@final
class named_scope:
    """Name a part of a program: `with named_scope("attention"): …`, or `@named_scope("attention")` on a function.

    The ops inside carry the names of all enclosing scopes in their locations, which appear in profiles, in the compiled
    program and in messages. A scope does not change results or cause a recompilation.

    Args:
        name: the name of the scope.

    Raises:
        TypeError: if `name` is not a string.

    Example:
        >>> @jax.jit
        ... def loss(x):
        ...     with jax.named_scope("attention"):
        ...         return jnp.sin(x)
        >>> "attention" in loss.lower(1.0).as_text(debug_info=True)
        True
    """

    def __init__(self, name: str):
        if not isinstance(name, str):
            raise TypeError(f"named_scope needs a string, not {name!r}")
        self.name = name
        self._around: list[tuple[str, ...]] = []

    def __enter__(self) -> None:
        self._around.append(provenance.scope)
        provenance.scope = (*provenance.scope, self.name)

    def __exit__(self, *error: object) -> None:
        provenance.scope = self._around.pop()

    def __call__(self, function: _Function) -> _Function:
        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            with use_scope((*provenance.scope, self.name)):
                return function(*args, **keywords)

        return call  # type: ignore[return-value]


def current_source() -> Source:
    """Return the source for an equation that is emitted now."""
    return provenance.source or user_source()


def user_source() -> Source:
    """Return the innermost line on the call stack that is outside this package."""
    frame = user_frame()
    if frame is None:
        return NOWHERE
    code = frame.f_code
    settings = config.xla_metadata, config.no_collectives
    return Source(code.co_filename, frame.f_lineno, code.co_name, provenance.scope, *settings)
