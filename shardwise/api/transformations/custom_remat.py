"""custom_remat: functions with their own rules for what reverse mode saves and what it recomputes."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from shardwise import tree
from shardwise.api.arguments import check_function
from shardwise.api.static_args import select_arguments
from shardwise.api.transformations.custom import custom_vjp
from shardwise.api.transformations.remat import checkpoint_policies
from shardwise.api.wrapping import wraps
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.transforms.checkpoint_policy import Policy, current_policy

_Function = Callable[..., Any]
_SAVED = CheckpointName("custom_remat", always_saved=True)


def custom_remat(
    f: _Function,
    f_fwd: _Function,
    f_rem: _Function,
    f_bwd: _Function,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> _Function:
    """Define what reverse mode saves of a function, and how it recomputes the rest.

    The policy of `checkpoint` chooses among named values. This function chooses residuals of its own instead: the
    forward pass calls `f_fwd` and saves its residuals, inside `checkpoint` too. The backward pass calls `f_rem` and
    then `f_bwd`. Without derivatives, `f` runs. Forward mode is not supported, as for `custom_vjp`.

    Args:
        f: the function.
        f_fwd: `f_fwd(policy, *args)` returns the result of `f` and the residuals to save, a pytree of arrays or None.
            `policy` is that of the enclosing `checkpoint`: `nothing_saveable` if it has none, and
            `everything_saveable` outside of `checkpoint`.
        f_rem: `f_rem(residuals, *args)` returns the result of `f` and the residuals of `f_bwd`.
        f_bwd: `f_bwd(residuals, cotangent)` returns a tuple with the cotangent of each argument that is not static.
        static_argnums: the positional arguments that are Python values and not differentiated.
        static_argnames: the names of such arguments.

    Returns:
        A function like `f`.

    Raises:
        TypeError: if `f` or a rule is not callable, or if `static_argnums` or `static_argnames` have a wrong type.
        ValueError: if `f` does not have the static arguments.

    Example:
        >>> saves_cosine = jax.custom_remat(
        ...     jnp.sin,
        ...     f_fwd=lambda policy, x: (jnp.sin(x), jnp.cos(x)),
        ...     f_rem=lambda cosine, x: (jnp.sin(x), cosine),
        ...     f_bwd=lambda cosine, ct: (cosine * ct,),
        ... )
        >>> jax.grad(jax.checkpoint(saves_cosine))(0.0)
        Array(1., dtype=float32, weak_type=True)
    """
    for function in (f, f_fwd, f_rem, f_bwd):
        check_function("custom_remat", function)
    static = select_arguments(f, "static", None if static_argnums == () else static_argnums, static_argnames or None)
    numbers = tuple(sorted(static.numbers))

    @lru_cache(maxsize=16)
    def with_policy(policy: Policy) -> _Function:
        def forward(*args: Any) -> tuple[Any, Any]:
            result, residuals = f_fwd(policy, *args)
            saved = tree.map(lambda leaf: _SAVED(as_operand(leaf, "custom_remat")), residuals)
            return result, (saved, [arg for position, arg in enumerate(args) if not static.has(position, len(args))])

        def backward(*args: Any) -> Any:
            *static_args, (saved, arrays), cotangent = args
            count, static_values, array_values = len(static_args) + len(arrays), iter(static_args), iter(arrays)
            ordered = [next(static_values if static.has(i, count) else array_values) for i in range(count)]
            _, residuals = f_rem(saved, *ordered)
            return f_bwd(residuals, cotangent)

        function = custom_vjp(f, nondiff_argnums=numbers)
        function.defvjp(forward, backward)
        return function

    @wraps(f)
    def call(*args: object, **keywords: object) -> Any:
        return with_policy(current_policy.get() or checkpoint_policies.everything_saveable)(*args, **keywords)

    return call
