"""fwd_and_bwd: the forward and the backward pass of a function, each compiled once."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.api.arguments import check_function
from shardwise.api.jit import jit
from shardwise.api.transformations.differentiate import select_argnums, vjp


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Create the forward and the backward pass of a function, for programs that run them in separate calls.

    `jit(vjp_fun)` would compile the backward pass of every call of `vjp` anew: here, one function serves all calls.

    Args:
        fun: the function to differentiate.
        argnums: the position of the argument to differentiate with respect to, or several.
        has_aux: whether `fun` returns a pair (value, aux) of which only the value is differentiated.
        jitted: whether to compile both functions.

    Returns:
        The function `fwd`, with the arguments of `fun`, which returns the value and the residuals, with `has_aux` also
        aux; and the function `bwd` from the residuals and a cotangent of the value to the cotangent of the argument, or
        to a tuple of them if `argnums` is a sequence.

    Raises:
        TypeError: if `fun` is not callable; when called, as `vjp`.

    Example:
        >>> fwd, bwd = jax.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
        >>> value, residuals = fwd(2.0, 5.0)
        >>> [float(ct) for ct in bwd(residuals, 1.0)]
        [5.0, 2.0]
    """
    check_function("fwd_and_bwd", fun)

    def fwd(*args: object, **keywords: object) -> Any:
        inner, active, _ = select_argnums(fun, argnums, args, keywords)
        return vjp(inner, *active, has_aux=has_aux)

    def bwd(residuals: Callable[..., Any], cotangent: object) -> Any:
        cotangents = residuals(cotangent)
        return cotangents[0] if isinstance(argnums, int) else cotangents

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
