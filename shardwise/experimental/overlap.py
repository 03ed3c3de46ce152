"""jax.experimental.overlap: run the kernels of a function in program order, to overlap collectives by hand."""

from collections.abc import Callable, Iterable
from typing import Any

from shardwise.api.arguments import check_function
from shardwise.api.static_args import NO_ARGUMENTS, select_arguments, selected_leaves, split_static
from shardwise.api.transformations.traced_call import trace_call
from shardwise.api.wrapping import wraps
from shardwise.base.lazy import publish
from shardwise.compiler.control.program_order import ProgramOrder
from shardwise.execute.traceback_filter import filter_traceback


def program_order(
    f: Callable[..., Any] | None = None,
    *,
    enforce: bool,
    strict_in_out: bool | tuple[bool, bool] = False,
    exclude_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Keep the kernels of a function in program order.

    XLA orders kernels by their dependencies alone. Here, `lax.optimization_barrier`s make each kernel depend on the one
    before: a product, a collective, a loop, a call of a jitted function or another op that XLA does not fuse, with the
    fusible ops after it. JAX separates all ops, so that XLA fuses none of them. A collective of `lax.psum_start` or
    another start function may run beside the kernels up to its `done()`. Derivatives have an order too.

    Backends may drop barriers. XLA's CPU compiler does, before it orders kernels.

    Args:
        f: the function. Without it, the result is a decorator.
        enforce: whether the kernels of `f` run in program order. Otherwise, `f` is one kernel of the function around
            it that has `enforce=True`, and XLA orders the ops of `f`.
        strict_in_out: whether all arguments are computed before the first kernel runs, and whether all results are
            computed before any of them is used. One bool stands for both.
        exclude_argnames: the arguments that may be used in `f` before the kernels ahead of it have run, such as weights
            that are gathered early. It needs `enforce=False`.

    Returns:
        A function that computes the same as `f`.

    Raises:
        ValueError: if `exclude_argnames` is passed with `enforce=True` or names no argument, or if `strict_in_out` is
            passed with `enforce=False`.
        TypeError: if `f` is not callable.

    Example:
        >>> ordered = jax.experimental.overlap.program_order(lambda x, y: (x @ x, y @ y), enforce=True)
        >>> jax.jit(ordered).lower(jnp.ones((2, 2)), jnp.ones((2, 2))).as_text().count("optimization_barrier")
        1
    """
    if enforce and exclude_argnames is not None:
        raise ValueError(
            "program_order: exclude_argnames needs enforce=False: it is for a block in an ordered function"
        )
    strict_in, strict_out = (strict_in_out,) * 2 if isinstance(strict_in_out, bool) else strict_in_out
    if not enforce and (strict_in or strict_out):
        raise ValueError("program_order: strict_in_out needs enforce=True: XLA orders the ops of a block")
    if f is None:
        return lambda function: program_order(
            function, enforce=enforce, strict_in_out=strict_in_out, exclude_argnames=exclude_argnames
        )
    check_function("program_order", f)
    function = f
    excluded = select_arguments(function, "exclude", None, exclude_argnames)

    @wraps(function)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        arguments = split_static(function, NO_ARGUMENTS, args, keywords)
        traced = trace_call(function, arguments, None)
        leaves = selected_leaves(excluded, arguments)
        prefetched = (*leaves, *[False] * (len(traced.operands) - len(leaves)))  # captured values follow the leaves
        return traced.apply(ProgramOrder(traced.program, enforce, strict_in, strict_out, prefetched))

    return call


publish(__name__)
