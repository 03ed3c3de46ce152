"""vmap: map a function over one more dim of its arguments."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import argument_names, check_function, describe_function, function_name
from shardwise.api.axes import Axes, argument_axes, check_axes, common_size, mapped_dim, output_axes
from shardwise.api.flatten import FlatFunction
from shardwise.api.ref import Ref, RefScope
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.api.transformations.vmappable import has_vmappables, map_containers
from shardwise.api.wrapping import wraps
from shardwise.compiler.arrays.exact_operands import check_mapped_shardings
from shardwise.compiler.arrays.methods import Array, is_array_like
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.reductions import sum
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.transforms.vmap import batch_sharding, map_function
from shardwise.execute.traceback_filter import filter_traceback

_P = ParamSpec("_P")
_R = TypeVar("_R")


def vmap(
    fun: Callable[_P, _R],
    in_axes: object = 0,
    out_axes: object = 0,
    axis_name: Hashable = None,
    axis_size: int | None = None,
    spmd_axis_name: str | tuple[str, ...] | None = None,
    sum_match: bool = False,
) -> Callable[_P, _R]:
    """Map a function over one axis of its arguments (the batch axis).

    Arguments that are passed by keyword are mapped over axis 0.

    Args:
        fun: the function to map.
        in_axes: the axis of each positional argument to map over, as a tree prefix of the positional arguments.
            An argument with None is not mapped: `fun` receives it unchanged, and it can be any Python object.
        out_axes: the axis of each result that becomes the batch axis, as a tree prefix of the results. None is for
            results that do not depend on a mapped argument.
        axis_name: a name for the batch axis, for collectives such as `lax.psum` and `lax.axis_index` in `fun`.
        axis_size: the size of the batch axis; required if no argument is mapped.
        spmd_axis_name: the mesh axis or axes that `with_sharding_constraint` in `fun` shards the batch axis along.
            Without it, the planner chooses.
        sum_match: whether to sum a result over the batch axis if its entry in `out_axes` is None and it depends on a
            mapped argument, in place of an error.

    Returns:
        A function of batched arguments that returns batched results.

    Raises:
        TypeError: if `fun` is not callable, if `in_axes`, `out_axes`, `axis_name`, `axis_size` or `spmd_axis_name` has
            a wrong type, or if a mapped argument is not an array.
        ValueError: if `in_axes` or `out_axes` is not a tree prefix, if an axis is out of range, if mapped axes differ
            in size, or if `out_axes` is None for a result that depends on a mapped argument and `sum_match` is false.

    Example:
        >>> jax.vmap(jnp.dot, in_axes=(0, None))(jnp.eye(3), jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    check_function("vmap", fun)
    label = f"vmap of {describe_function(fun)}"
    check_axes(label, in_axes, axis_name, axis_size)
    if wrong := [axis for axis in tree.leaves(out_axes) if type(axis) is not int]:
        raise TypeError(f"{label}: out_axes must be an integer, None, or a pytree of these, not {wrong[0]!r}")
    mesh_axes = _mesh_axes(label, spmd_axis_name)

    @wraps(fun)
    @filter_traceback
    def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
        if not has_vmappables():
            return call_with_arrays(fun, in_axes, out_axes, args, keywords)

        def map_arrays(f: Callable[..., Any], in_axes: object, out_axes: object, args: Sequence[Any]) -> Any:
            return call_with_arrays(f, in_axes, out_axes, tuple(args), {})

        return map_containers(label, fun, in_axes, out_axes, axis_size, args, keywords, map_arrays)

    def call_with_arrays(
        fun: Callable[..., Any], in_axes: object, out_axes: object, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        names = argument_names(fun, args, keywords)
        axes = argument_axes(label, in_axes, args, keywords)
        refs = {n: x for n, x in enumerate(leaves) if isinstance(x, Ref) and axes[n] is not None}
        leaves = [x[...] if n in refs else x for n, x in enumerate(leaves)]
        operands, dims, sizes = _mapped_operands(label, axes, leaves, names)
        size = common_size(label, axis_size, sizes)
        flat = _FunctionOfSlices(fun, structure, list(refs))
        axis = BatchAxis(size, axis_name, mesh_axes)
        check_mapped_shardings(label, operands, dims)
        sharding = batch_sharding(operands, dims, mesh_axes)
        outputs, out_dims = map_function(flat, axis, operands, dims, function_name(fun))
        count = flat.out_tree.num_leaves
        targets = [dim for index, dim in enumerate(dims) if index in refs and dim is not None]
        for ref, x, dim, target in zip(refs.values(), outputs[count:], out_dims[count:], targets, strict=True):
            ref[...] = batch_dim_at(x, dim, target, size)
        # Unflattening adds the float0 arrays of the result, which no op computes. It is done with arrays, because the
        # constructors of users' containers may convert what they hold.
        leaves, out_tree = tree.flatten(flat.out_tree.unflatten(outputs[:count]))
        rest = iter(out_dims[:count])
        results = [x if is_float0(x) else _Result(x, next(rest)) for x in leaves]
        axes = output_axes(label, out_axes, flat.out_tree)
        return out_tree.unflatten(
            [
                _with_batch_dim(label, index, x, axis, size, sharding, sum_match)
                for index, (x, axis) in enumerate(zip(results, axes, strict=True))
            ]
        )

    return call


@final
class _FunctionOfSlices(FlatFunction):
    """A flat function; it receives the leaves at `refs` as Refs of slices, which are further results."""

    def __init__(self, function: Callable[..., Any], in_tree: tree.Structure, refs: Sequence[int]):
        super().__init__(function, in_tree)
        self.refs = refs

    def __call__(self, *leaves: Any) -> list[Any]:
        with RefScope(read_only="Each slice would set it: pass it as an argument with its batch axis in `in_axes`."):
            refs = {number: Ref(leaves[number]) for number in self.refs}
            outputs = super().__call__(*(refs.get(number, leaf) for number, leaf in enumerate(leaves)))
            return [*outputs, *(ref[...] for ref in refs.values())]


def _mesh_axes(label: str, spmd_axis_name: object) -> tuple[str, ...]:
    axes = () if spmd_axis_name is None else (spmd_axis_name,) if isinstance(spmd_axis_name, str) else spmd_axis_name
    if not isinstance(axes, tuple) or any(not isinstance(axis, str) for axis in axes) or len(set(axes)) != len(axes):
        raise TypeError(
            f"{label}: spmd_axis_name must be the name of a mesh axis, or a tuple of distinct names, "
            f"not {spmd_axis_name!r}"
        )
    return axes


def _mapped_operands(
    label: str, axes: Axes, leaves: Sequence[Any], names: Sequence[str]
) -> tuple[list[Any], Axes, dict[str, int]]:
    """Convert the mapped leaves to operands.

    Returns:
        All leaves, the mapped dim of each (None: not mapped), and the sizes of the mapped dims by argument name. Of a
        mapped float0 array, which has no elements, the function receives one slice.
    """
    operands: list[Any] = []
    dims: Axes = []
    sizes: dict[str, int] = {}
    for leaf, axis, name in zip(leaves, axes, names, strict=True):
        if axis is None:
            operands.append(leaf)
            dims.append(None)
            continue
        if is_float0(leaf):
            shape = list(leaf.shape)
            sizes[name] = shape.pop(axis)
            operands.append(np.zeros(shape, float0))
            dims.append(None)
            continue
        if not is_array_like(leaf):
            raise TypeError(
                f"{label}: in_axes maps axis {axis} of {name}, which is {leaf!r} of type {type(leaf).__name__}: only "
                "arrays can be mapped. Use None for it in in_axes to pass it through unchanged."
            )
        x = as_operand(leaf)
        dim = mapped_dim(label, axis, x.type, name)
        operands.append(x)
        dims.append(dim)
        sizes[name] = x.type.shape[dim]
    return operands, dims, sizes


@final
@dataclass(frozen=True, eq=False)
class _Result:
    """A result of the mapped function, and its batch dim; None if it does not depend on a mapped argument."""

    value: Any
    dim: int | None


def _with_batch_dim(
    label: str,
    number: int,
    result: _Result | np.ndarray[Any, Any],
    axis: int | None,
    size: int,
    sharding: ExplicitSharding | None,
    sum_match: bool,
) -> Array | np.ndarray[Any, Any]:
    """Return result `number`, a `_Result` or a float0 array, with its batch dim at `axis`.

    The batch dim of a result that does not depend on a mapped argument gets the sharding of the mapped dims.
    """
    shape, dim = (result.value.type.shape, result.dim) if isinstance(result, _Result) else (result.shape, None)
    rank = len(shape) + (dim is None)
    if axis is None:
        if isinstance(result, _Result) and dim is not None and sum_match:
            return sum(result.value, axis=dim)
        if dim is not None:
            raise ValueError(
                f"{label}: out_axes is None for result {number}, but this result depends on a mapped argument: "
                "give its batch axis a position, such as 0"
            )
        return result.value if isinstance(result, _Result) else result
    if not -rank <= axis < rank:
        raise ValueError(
            f"{label}: out_axes has axis {axis} for result {number}, but with the batch axis its rank is {rank}"
        )
    if not isinstance(result, _Result):
        return np.zeros((*shape[: axis % rank], size, *shape[axis % rank :]), float0)
    x = batch_dim_at(result.value, dim, axis % rank, size)
    if dim is not None or sharding is None:
        return x
    return reshard_to(x, result.value.type.with_dim(axis % rank, size, sharding).explicit)
