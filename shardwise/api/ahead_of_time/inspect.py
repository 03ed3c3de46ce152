"""Inspect functions without running them: eval_shape, make_jaxpr, typeof."""

from collections.abc import Callable, Hashable, Sequence
from functools import update_wrapper
from typing import Any, final

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct, leaf_type, struct
from shardwise.api.arguments import check_function, describe_function
from shardwise.api.jaxprs.jaxpr_forms import closed_jaxpr
from shardwise.api.jit import Jitted, TracedFunction, trace
from shardwise.api.ref import AbstractRef, Ref
from shardwise.api.ref_arguments import FunctionOfArrays
from shardwise.api.static_args import NO_ARGUMENTS, ArgumentSelection, select_arguments, split_static
from shardwise.api.wrapping import wraps
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.dispatch import bind_axis_names
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.typing import ArrayLike


def eval_shape(fun: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Compute the shapes and dtypes of a function's results without computing anything else.

    Args:
        fun: the function, which is traced.
        *args: pytrees of arrays, or of any objects with a `shape` and a `dtype`.
        **kwargs: such arguments, by keyword.

    Returns:
        A pytree like the function's result, of `ShapeDtypeStruct`s. Those that the function returns itself are kept.

    Raises:
        TypeError: if `fun` is not callable, if an argument has neither a type nor a shape and a dtype, or if
            `fun` returns something other than arrays and numbers. Errors of `fun` itself are raised too.

    Example:
        >>> jax.eval_shape(jnp.dot, jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32))
        ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    check_function("eval_shape", fun)
    static = fun.options.static if isinstance(fun, Jitted) else NO_ARGUMENTS
    abstract_results: dict[int, ShapeDtypeStruct] = {}

    @wraps(fun)
    def with_arrays(*args: object, **kwargs: object) -> Any:
        leaves, structure = tree.flatten(fun(*args, **kwargs))
        abstract_results.update({n: leaf for n, leaf in enumerate(leaves) if isinstance(leaf, ShapeDtypeStruct)})
        return structure.unflatten([zeros_of(x.type) if isinstance(x, ShapeDtypeStruct) else x for x in leaves])

    traced = _trace(with_arrays, static, args, kwargs)
    results = [struct(type) for type in traced.out_types]
    return traced.structure.unflatten([abstract_results.get(n, result) for n, result in enumerate(results)])


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """Create a function that returns the jaxpr which `fun` is traced to; nothing is computed.

    The jaxpr prints as the program of Shardwise that it is made of. Its equations have the names and parameters of
    JAX's primitives where libraries match on them, and those of Shardwise's ops otherwise.

    Args:
        fun: the function to trace.
        static_argnums: the positional arguments that are Python values and part of the program.
        axis_env: the names and sizes of axes that collectives in `fun` may use, as if `vmap` had bound them.
        return_shape: whether to return the shapes and dtypes of the results as well.

    Returns:
        A function with the arguments of `fun` that returns a `ClosedJaxpr`; with `return_shape`, a pair of it and
        a pytree of `ShapeDtypeStruct`s.

    Raises:
        TypeError: if `fun` is not callable or `static_argnums` are not integers; later, if an argument has
            neither a type nor a shape and a dtype.
        ValueError: if `fun` has no argument with a number in `static_argnums`; later, if a static argument is not
            hashable.

    Example:
        >>> jax.make_jaxpr(lambda x: jnp.sin(x) * x)(1.0)
        program _lambda_(a: f32[]~) {
          b: f32[]~ = sin a   # ...
          c: f32[]~ = mul b a   # ...
          return c
        }
    """
    check_function("make_jaxpr", fun)
    static = select_arguments(fun, "static", static_argnums, None)

    @wraps(fun)
    def call(*args: object, **keywords: object) -> Any:
        if any(isinstance(leaf, Ref) or getattr(leaf, "is_ref", False) for leaf in tree.leaves((args, keywords))):
            raise NotImplementedError(
                f"make_jaxpr of {describe_function(fun)}: an argument is a Ref, and a jaxpr has no equations for Refs. "
                "Pass its array instead, and return the new array."
            )
        with bind_axis_names(dict(axis_env or ()), frozenset()):
            traced = _trace(fun, static, args, keywords)
        if traced.written:
            raise NotImplementedError(
                f"make_jaxpr of {describe_function(fun)}: it changes a Ref of type {traced.written[0].type}, and "
                "a jaxpr has no equation for that. Return the new array instead."
            )
        jaxpr = closed_jaxpr(traced.program, traced.constants)
        if not return_shape:
            return jaxpr
        return jaxpr, traced.structure.unflatten([struct(type) for type in traced.program.out_types])

    return call


def _trace(
    function: Callable[..., Any], static: ArgumentSelection, args: tuple[Any, ...], keywords: dict[str, Any]
) -> TracedFunction:
    """Trace `function` for arguments that may be abstract."""
    arguments = split_static(function, static, args, keywords)
    leaves, structure = tree.flatten((arguments.args, arguments.keywords))
    types = [leaf_type(leaf, describe_function(function)) for leaf in leaves]
    refs = tuple(n for n, leaf in enumerate(leaves) if isinstance(leaf, Ref) or getattr(leaf, "is_ref", False))
    bound = arguments.bind(function)
    return trace(_FunctionOfRefs(bound, refs) if refs else bound, structure, types)


@final
class _FunctionOfRefs:
    """A function whose leaves at `positions` are Refs, as a function of the arrays that these hold."""

    def __init__(self, function: Callable[..., Any], positions: tuple[int, ...]):
        self._function_of_arrays = FunctionOfArrays(function, positions)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: object, **keywords: object) -> Any:
        result, _ = self._function_of_arrays(*args, **keywords)
        return result


def typeof(x: ArrayLike | Ref | ShapeDtypeStruct) -> ArrayType | AbstractRef:
    """Return the type of an array or a number: shape, dtype, whether it is weakly typed, and its varying mesh axes.

    Args:
        x: an array, a number, a tracer of one, or a Ref, or a `ShapeDtypeStruct` of these.

    Returns:
        The type; of a Ref, an `AbstractRef` with the type of its array. It prints as `f32[2,3]`; a `~` after it marks a
        weak type.

    Raises:
        TypeError: if `x` is neither an array nor a number.

    Example:
        >>> jax.typeof(jnp.zeros((2, 3))), jax.typeof(1.0)
        (f32[2,3], f32[]~)
    """
    if isinstance(x, ShapeDtypeStruct) and x.is_ref:
        return AbstractRef(x.type)
    return x.aval if isinstance(x, Ref) else type_of(x, "typeof")
