"""Containers that `vmap` maps by functions of a library, such as sparse arrays (JAX: vmappables).

A library registers two functions of a class: `to_elt` returns the element of a container along its batch axis, and
`from_elt` returns the container of all elements. Both receive a function that does the same for an array. They are
called twice: outside of the mapped function to collect its arrays, and inside it, or after it, to assemble the results.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shardwise import tree
from shardwise.api.axes import argument_axes, output_axes
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.ops.placement.retype import zeros_of

Function = Callable[..., Any]


class _Handlers(NamedTuple):
    to_elt: Function
    from_elt: Function


_handlers: dict[type, _Handlers] = {}


def register_vmappable(
    data_type: type,
    spec_type: type,
    axis_size_type: type,
    to_elt: Function,
    from_elt: Function,
    make_iota: Function | None,
) -> None:
    """Let `vmap` accept and return instances of a class.

    Args:
        data_type: the class.
        spec_type: the type of its entries in `in_axes` and `out_axes`; must be int.
        axis_size_type: the type of the size of its batch axis; must be int.
        to_elt: `to_elt(cont, get_index, container, axis)` returns an element; `cont(x, axis)` does it for an array.
        from_elt: `from_elt(cont, axis_size, element, axis)` returns a container; `cont(axis_size, x, axis)` does it for
            an array.
        make_iota: must be None.
    """
    if (spec_type, axis_size_type) != (int, int) or make_iota is not None:
        raise NotImplementedError(
            f"register_vmappable of {data_type.__name__}: axes and their sizes must be integers, and make_iota None"
        )
    _handlers[data_type] = _Handlers(to_elt, from_elt)


def is_vmappable(x: object) -> bool:
    """Return whether the class of an object is registered."""
    return type(x) in _handlers


def has_vmappables() -> bool:
    """Return whether any class is registered."""
    return bool(_handlers)


def map_containers(
    label: str,
    function: Function,
    in_axes: object,
    out_axes: object,
    axis_size: int | None,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    map_arrays: Callable[..., Any],
) -> Any:
    """Map a function whose arguments and results may be containers.

    `map_arrays(function, in_axes, out_axes, args)` maps a function of arrays, and reads `out_axes` after its call.
    """
    leaves, structure = tree.flatten((args, keywords), is_vmappable)
    axes = argument_axes(label, in_axes, *structure.unflatten([object() for _ in leaves]))
    arrays: list[Any] = []
    array_axes: list[int | None] = []

    def collect(x: Any, axis: int | None) -> Any:
        """Collect the arrays of an argument, and return an element of zeros."""
        if is_vmappable(x):
            return _handlers[type(x)].to_elt(collect, None, x, axis)
        arrays.append(x)
        array_axes.append(axis)
        if axis is None:
            return x
        type_ = type_of(x, label)
        return zeros_of(type_.without((axis % max(type_.ndim, 1),)))

    for leaf, axis in zip(leaves, axes, strict=True):
        if is_vmappable(leaf):
            collect(leaf, axis)
        else:
            arrays.append(leaf)
            array_axes.append(axis)
    sizes = [type_of(x).shape[axis] for x, axis in zip(arrays, array_axes, strict=True) if axis is not None]
    size = sizes[0] if sizes else axis_size
    results: list[Any] = []  # the results of the function, with containers of tracers
    result_axes: list[int | None] = []
    flat_axes: list[int | None] = []
    out_structure: Any = None

    def function_of_arrays(*slices: Any) -> list[Any]:
        nonlocal out_structure
        remaining = iter(slices)
        elements = [_element(leaf, axis, remaining) for leaf, axis in zip(leaves, axes, strict=True)]
        inner_args, inner_keywords = structure.unflatten(elements)
        results[:], out_structure = tree.flatten(function(*inner_args, **inner_keywords), is_vmappable)
        result_axes[:] = output_axes(label, out_axes, out_structure)
        flat: list[Any] = []
        flat_axes.clear()

        def collect_result(axis_size: int, x: Any, axis: int | None) -> Any:
            """Collect the arrays of a result, and return a container of zeros."""
            if is_vmappable(x):
                return _handlers[type(x)].from_elt(collect_result, axis_size, x, axis)
            flat.append(x)
            flat_axes.append(axis)
            return x if axis is None else zeros_of(as_operand(x).type.with_dim(axis, axis_size))

        for result, axis in zip(results, result_axes, strict=True):
            collect_result(size or 1, result, axis)
        return flat

    mapped = iter(map_arrays(function_of_arrays, tuple(array_axes), flat_axes, arrays))
    pairs = zip(results, result_axes, strict=True)
    return out_structure.unflatten([_container(x, axis, size or 1, mapped) for x, axis in pairs])


def _element(x: Any, axis: int | None, slices: Iterator[Any]) -> Any:
    """Return the element of an argument, made of the next slices."""
    if not is_vmappable(x):
        return next(slices)
    return _handlers[type(x)].to_elt(lambda inner, axis: _element(inner, axis, slices), None, x, axis)


def _container(x: Any, axis: int | None, size: int, arrays: Iterator[Any]) -> Any:
    """Return a result, made of the next mapped arrays."""
    if not is_vmappable(x):
        return next(arrays)
    return _handlers[type(x)].from_elt(lambda size, inner, axis: _container(inner, axis, size, arrays), size, x, axis)
