"""xmap: map a function over named axes of its arguments.

    in     a function of arrays without their named dims
    out    a function of arrays with these dims; `in_axes` and `out_axes` name them

The function is traced once, for arrays without the named dims, and its program is vmapped over one name after the
other. Collectives along a name thus become ordinary ops along a dim. `axis_resources` constrains the shardings of
arguments and results only; the planner chooses the others.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, final

from shardwise import tree
from shardwise.api.ahead_of_time.aot import Lowered
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    check_function,
    describe_function,
    describe_mismatch,
    function_name,
)
from shardwise.api.flatten import FlatFunction
from shardwise.api.jit import jit
from shardwise.api.meshes.constrain import constrain
from shardwise.base.caches import registered_cache
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.movement import permute
from shardwise.compiler.shardings.mesh import Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import UNCONSTRAINED, PartitionSpec
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.errors import ShardingError
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.experimental.named_dims import Name, NamedDims, is_entry, is_named_dims, named_dims_leaves, parse_axes
from shardwise.experimental.serial_loops import SerialLoop, merge_steps, run_in_steps, serial_loop, split_resources
from shardwise.runtime.client import default_backend

__all__ = ["SerialLoop", "serial_loop", "xmap"]

Function = Callable[..., Any]


def xmap(
    fun: Function,
    in_axes: object,
    out_axes: object,
    *,
    axis_sizes: Mapping[Name, int] = MappingProxyType({}),
    axis_resources: Mapping[Name, Any] = MappingProxyType({}),
    donate_argnums: int | Sequence[int] = (),
    backend: str | None = None,
) -> Function:
    """Map a function over named axes of its arguments.

    `fun` is written for arrays without their named dims. It uses names in collectives (`lax.psum`, `lax.axis_index`)
    and as axes of reductions (`jnp.mean(x, "batch")`). A result that does not vary along a name in its `out_axes` is
    broadcast along it.

    A result may not vary along a name that its `out_axes` do not have, with one exception. If `fun` does not use the
    name and no `out_axes` have it, `fun` is traced again with the named dim as the last dim of each array that has it.
    Reductions over all dims, such as `x.sum()`, then reduce it too. The result must have the shape that it has without
    the dim.

    Args:
        fun: the function of positional arguments.
        in_axes: a pytree prefix of the arguments with the names of the dims of each array: a list with one entry per
            dim (None for a dim without a name, `...` at the end for all further dims without names), or a dict from
            dims to names.
        out_axes: the same for the results.
        axis_sizes: the sizes of names; required for names that no argument has.
        axis_resources: the mesh axis, or tuple of mesh axes, along which the dims of a name are sharded. A
            `SerialLoop`, or the name of a `serial_loop`, computes the dims in steps; `fun` must not use such a name.
        donate_argnums: the positions of donated arguments, as for `jit`.
        backend: None, or the default backend.

    Returns:
        A function of arrays with the named dims. Its method `lower` compiles ahead of time, as `lower` of a jitted
        function does.

    Raises:
        TypeError: if `fun` is not callable, or if an entry of `in_axes`, `out_axes`, `axis_sizes` or `axis_resources`
            has the wrong type.
        ValueError: if a name is unknown or repeats in an array. The returned function raises it for arguments or
            results that do not match their axes, and for results that vary along a name without an entry in `out_axes`.
        ShardingError: if `axis_resources` shards two dims of an array along one mesh axis. The returned function raises
            it for mesh axes that do not exist.
        NotImplementedError: if `backend` is not the default backend.

    Example:
        >>> rows = jax.experimental.maps.xmap(lambda x: x.sum(), in_axes=["batch", "features"], out_axes=["batch"])
        >>> rows(jnp.arange(6).reshape(2, 3))
        Array([ 3, 12], dtype=int32)
    """
    check_function("xmap", fun)
    spec = _XmapSpec.from_axes(fun, in_axes, out_axes, axis_sizes, axis_resources)
    if backend is not None and backend != default_backend():
        raise NotImplementedError(
            f"xmap of {describe_function(fun)}: backend {backend!r} is not supported: leave it out"
        )

    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)

    @wraps(fun)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        if keywords:
            raise TypeError(
                f"xmap of {describe_function(fun)} accepts positional arguments only, not "
                f"{', '.join(map(repr, keywords))}: "
                "in_axes are matched by position"
            )
        return _compiled(spec, donated)(*args)

    def lower(*args: object) -> Lowered:
        """Compile the function for arguments of these types, ahead of time, as `lower` of a jitted function does."""
        lowered: Lowered = _compiled(spec, donated).lower(*args)
        return lowered

    call.lower = lower  # type: ignore[attr-defined]
    return call


def _compiled(spec: "_XmapSpec", donated: tuple[int, ...]) -> Any:
    """Return the jitted function of all arrays with their named dims, for the mesh and the loops that are in force."""
    resolved = spec.resolved()
    resolved.check_mesh()
    return (_cached_jit if isinstance(spec.fun, Hashable) else _jit)(resolved, donated)


def _jit(spec: "_XmapSpec", donated: tuple[int, ...]) -> Any:
    @wraps(spec.fun)
    def global_function(*args: object) -> Any:
        return spec.run(args)

    return jit(global_function, donate_argnums=donated)


_cached_jit = registered_cache(maxsize=128)(_jit)


@final
@dataclass(frozen=True, eq=False)
class _XmapSpec:
    """The arguments of one `xmap`, with `in_axes` and `out_axes` as pytrees of `NamedDims`.

    `resolved` returns a spec whose `resources` are mesh axes; `loops` then has the numbers of steps of names, and
    `looped` the names whose steps are being traced.
    """

    fun: Function
    in_axes: Any
    out_axes: Any
    sizes: Mapping[Name, int]
    resources: Mapping[Name, tuple[Any, ...]]
    loops: Mapping[Name, int] = field(default_factory=dict)
    looped: frozenset[Name] = frozenset()

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        axes = [
            (
                tree.structure(axes, is_named_dims),
                tuple((tuple(dims.names.items()), dims.rank) for dims in named_dims_leaves(axes)),
            )
            for axes in (self.in_axes, self.out_axes)
        ]
        tables = (tuple(table.items()) for table in (self.sizes, self.resources, self.loops))
        return (self.fun, *axes, *tables, self.looped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _XmapSpec) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def resolved(self) -> "_XmapSpec":
        """Return the spec with the loops that are in force now separated from the mesh axes."""
        split = {name: split_resources(resources) for name, resources in self.resources.items()}
        loops = {name: steps for name, (_, steps) in split.items() if steps > 1}
        return replace(self, resources={name: axes for name, (axes, _) in split.items()}, loops=loops)

    @staticmethod
    def from_axes(
        fun: Function, in_axes: object, out_axes: object, sizes: Mapping[Name, int], resources: Mapping[Name, Any]
    ) -> "_XmapSpec":
        label = f"xmap of {describe_function(fun)}"
        if isinstance(in_axes, list) and not is_entry(in_axes):
            in_axes = tuple(in_axes)  # one entry per positional argument
        ins = () if in_axes == () else parse_axes(f"{label}: in_axes", in_axes)
        outs = parse_axes(f"{label}: out_axes", out_axes)
        for name, size in sizes.items():
            if type(size) is not int or size < 0:
                raise TypeError(f"{label}: the size of {name!r} in axis_sizes must be an integer >= 0, not {size!r}")
        defined = [*sizes, *(name for dims in named_dims_leaves(ins) for name in dims.all)]
        out_names = [name for dims in named_dims_leaves(outs) for name in dims.all]
        for argument, names in (("out_axes", out_names), ("axis_resources", list(resources))):
            if unknown := [name for name in names if name not in defined]:
                raise ValueError(
                    f"{label}: {argument} has the unknown name {unknown[0]!r}, which is in neither in_axes nor "
                    f"axis_sizes. The names are {', '.join(dict.fromkeys(map(repr, defined))) or 'none'}."
                )
        mesh_axes = {name: _mesh_axes(label, name, resources[name]) for name in resources}
        spec = _XmapSpec(fun, ins, outs, dict(sizes), mesh_axes)
        for dims in (*named_dims_leaves(ins), *named_dims_leaves(outs)):
            spec._check_distinct_axes(dims)
        return spec

    def _check_distinct_axes(self, dims: NamedDims) -> None:
        """Raise if two dims of one array would be sharded along one mesh axis."""
        used: dict[str, Name] = {}
        for name in dims.names.values():
            for axis in self.resources.get(name, ()):
                if isinstance(axis, SerialLoop):
                    continue
                if axis in used:
                    raise ShardingError(
                        f"xmap of {describe_function(self.fun)}: axis_resources maps both {used[axis]!r} and {name!r} "
                        "to the "
                        f"mesh axis {axis!r}, and {dims.text} has both: a mesh axis can shard only one dim of an array"
                    )
                used[axis] = name

    def check_mesh(self) -> None:
        """Raise if a mesh axis of `axis_resources` does not exist, or is used by an enclosing xmap."""
        label = f"xmap of {describe_function(self.fun)}: axis_resources maps"
        for name, axes in self.resources.items():
            for axis in axes:
                if mesh_context.mesh is None:
                    raise ShardingError(
                        f"{label} {name!r} to the mesh axis {axis!r}, but no mesh is in force. Set one with `with "
                        "mesh:` or `set_mesh(mesh)`."
                    )
                if axis not in mesh_context.mesh.shape:
                    raise ShardingError(
                        f"{label} {name!r} to {axis!r}, but {mesh_context.mesh.abstract.unknown_axis_message(axis)}"
                    )
                if axis in _enclosing.used_axes:
                    raise ShardingError(
                        f"{label} {name!r} to the mesh axis {axis!r}, which an enclosing xmap uses for "
                        f"{_enclosing.used_axes[axis]!r}: a mesh axis can shard only one dim of an array"
                    )

    def run(self, args: tuple[Any, ...]) -> Any:
        """Return the results for arguments with their named dims."""
        leaves, structure = array_leaves(self.fun, args, {})
        in_dims = self.dims_of_leaves("in_axes", self.in_axes, args)
        operands = [as_operand(leaf) for leaf in leaves]
        sizes = self._name_sizes(operands, in_dims, argument_names(self.fun, args, {}))
        if self.loops:
            return self._run_in_steps(structure, operands, in_dims, sizes)
        return _Call(self, structure, operands, in_dims, sizes).results()

    def _run_in_steps(
        self, structure: tree.Structure, operands: list[Any], in_dims: list[NamedDims], sizes: Mapping[Name, int]
    ) -> Any:
        """Return the results, computed in steps along the first name that has a loop."""
        (name, steps), *others = self.loops.items()
        label = f"xmap of {describe_function(self.fun)}"
        if sizes[name] % steps:
            raise ValueError(
                f"{label}: a serial loop of {steps} steps does not divide the size {sizes[name]} of {name!r}"
            )
        inner = replace(
            self,
            sizes={**self.sizes, name: sizes[name] // steps},
            loops=dict(others),
            looped=self.looped | {name},
        )
        dims = [dims.position(name, dims.all) for dims in in_dims]
        leaves, out_tree = run_in_steps(lambda parts: inner.run(structure.unflatten(parts)[0]), operands, dims, steps)
        out_dims = self.dims_of_leaves("out_axes", self.out_axes, out_tree.unflatten(list(range(len(leaves)))))
        results = []
        for index, (x, dims_of_result) in enumerate(zip(leaves, out_dims, strict=True)):
            dim = dims_of_result.position(name, dims_of_result.all)
            if dim is None:
                raise ValueError(
                    f"{label}: out_axes {dims_of_result.text} of result {index} do not have {name!r}, which is "
                    "computed in steps of a serial loop: add it to out_axes"
                )
            results.append(merge_steps(x, dim))
        return out_tree.unflatten(results)

    def dims_of_leaves(self, argument: str, prefix: object, values: object) -> list[NamedDims]:
        """Broadcast a pytree prefix of `NamedDims` to the leaves of `values`."""
        try:
            return tree.broadcast_prefix(prefix, values, lambda node: isinstance(node, NamedDims))
        except tree.TreeMismatch as mismatch:
            raise ValueError(
                f"xmap of {describe_function(self.fun)}: {argument} do not match.\n  "
                f"{describe_mismatch(mismatch, argument)}"
            ) from None

    def _name_sizes(
        self, operands: Sequence[Any], in_dims: Sequence[NamedDims], labels: Sequence[str]
    ) -> dict[Name, int]:
        """Return the size of every name, and check that all its dims agree on it."""
        caller = f"xmap of {describe_function(self.fun)}"
        sources: dict[Name, dict[str, int]] = {name: {"axis_sizes has": size} for name, size in self.sizes.items()}
        for x, dims, label in zip(operands, in_dims, labels, strict=True):
            rank = x.type.ndim
            if dims.rank not in (None, rank) or any(dim >= rank for dim in dims.names):
                hint = " A list must have one entry per dim, or end with `...`." if dims.rank is not None else ""
                raise ValueError(f"{caller}: in_axes {dims.text} do not match {label}, {x.type} of rank {rank}.{hint}")
            for dim, name in dims.names.items():
                sources.setdefault(name, {})[f"{label} has"] = x.type.shape[dim]
        for name, sizes in sources.items():
            if len(set(sizes.values())) > 1:
                lines = "".join(f"\n  {source} {size}" for source, size in sizes.items())
                raise ValueError(f"{caller}: all dims with the name {name!r} must have the same size:{lines}")
        return {name: next(iter(sizes.values())) for name, sizes in sources.items()}

    def constrain(self, x: Array, dims: NamedDims) -> Array:
        """Constrain the named dims of an array to the mesh axes of `axis_resources`."""
        if not any(self.resources.get(name) for name in dims.names.values()):
            return x
        entries = [self.resources.get(dims.names[d]) if d in dims.names else None for d in range(x.type.ndim)]
        mesh = mesh_context.mesh
        assert isinstance(mesh, Mesh)
        spec = PartitionSpec(*(axes if axes else UNCONSTRAINED for axes in entries))
        return constrain(x, NamedSharding(mesh, spec))


@final
class _Call:
    """One call of an xmapped function: the operands, their named dims, and the sizes of the names."""

    def __init__(
        self,
        spec: _XmapSpec,
        structure: tree.Structure,
        operands: Sequence[Any],
        in_dims: Sequence[NamedDims],
        sizes: Mapping[Name, int],
    ):
        self.spec = spec
        self.flat = FlatFunction(spec.fun, structure)
        self.operands = [spec.constrain(x, dims) for x, dims in zip(operands, in_dims, strict=True)]
        self.in_dims = in_dims
        self.sizes = sizes

    def results(self) -> Any:
        """Return the results of `fun`, with the named dims at the positions of `out_axes`."""
        traced = self._trace({})
        operands = self.operands
        mapped = self._vmap_names(traced, self.in_dims)
        out_dims = self._out_dims(mapped)
        if any(_extra_names(names, dims) for names, dims in zip(mapped.names, out_dims, strict=True)):
            operands, in_dims, traced = self._retrace_with_positional_dims(mapped, out_dims, traced[0])
            mapped = self._vmap_names(traced, in_dims)
        results = replay(mapped.program, [*operands, *traced[1]])
        return self.flat.out_tree.unflatten(
            [
                self._move_dims(x, names, dims, index)
                for index, (x, names, dims) in enumerate(zip(results, mapped.names, out_dims, strict=True))
            ]
        )

    def _out_dims(self, mapped: "_Mapped") -> list[NamedDims]:
        results = self.flat.out_tree.unflatten(list(range(len(mapped.names))))
        return self.spec.dims_of_leaves("out_axes", self.spec.out_axes, results)

    def _trace(self, positional: Mapping[Name, int]) -> tuple[Program, list[Any]]:
        """Return the program of `fun` over arrays without named dims, and the values that it closes over.

        The names in `positional` are not bound: their dims, of these sizes, are the last dims of the arrays that have
        them.
        """
        types: list[ArrayType] = []
        for x, dims in zip(self.operands, self.in_dims, strict=True):
            kept = x.type.without(tuple(dims.names)).shape
            types.append(x.type.with_shape((*kept, *(size for name, size in positional.items() if name in dims.all))))
        axes = {name: size for name, size in self.sizes.items() if name not in positional}
        with _enclosing.using(self.spec.resources):
            program, captured = build(self.flat, types, function_name(self.spec.fun), axes)
        if used := [name for name in self.spec.looped if name in program.axis_names]:
            raise ValueError(
                f"xmap of {describe_function(self.spec.fun)}: {used[0]!r} is computed in steps of a serial loop, so "
                "the function must not use it, for example in collectives"
            )
        return program, captured

    def _vmap_names(self, traced: tuple[Program, list[Any]], in_dims: Sequence[NamedDims]) -> "_Mapped":
        """Vmap a traced function over all names that it uses or that its operands have."""
        program, captured = traced
        names: list[list[Name | None]] = [[None] * type.ndim for type in program.out_types]
        mapped: list[Name] = []  # so far
        for name, size in self.sizes.items():
            if name not in program.axis_names and all(name not in dims.all for dims in in_dims):
                continue
            positions = [dims.position(name, mapped) for dims in in_dims]
            axis = BatchAxis(size, name, self.spec.resources.get(name, ()))
            program, out_dims = vmap_program(program, axis, (*positions, *(None,) * len(captured)))
            mapped.append(name)
            for result_names, dim in zip(names, out_dims, strict=True):
                if dim is not None:
                    result_names.insert(dim, name)
        return _Mapped(program, names)

    def _retrace_with_positional_dims(
        self, mapped: "_Mapped", out_dims: Sequence[NamedDims], named: Program
    ) -> tuple[list[Any], list[NamedDims], tuple[Program, list[Any]]]:
        """Trace `fun` again with the names that results vary along, but should not, as last dims of the operands.

        Returns the transposed operands, their remaining named dims, and the traced function. Raises if `fun` does not
        reduce the positional dims.
        """
        extra = [_extra_names(names, dims) for names, dims in zip(mapped.names, out_dims, strict=True)]
        unnamed = [name for name in self.sizes if any(name in names for names in extra)]
        number = next(number for number, names in enumerate(extra) if names)
        if any(name in named.axis_names or any(name in dims.all for dims in out_dims) for name in unnamed):
            raise self._varying_result_error(extra[number], out_dims[number], number)
        # Trace with sizes that no operand's dim has: a dim that is not reduced then shows in the result's type. Two
        # attempts with different sizes exclude a coincidence with a dim that `fun` creates.
        largest = max(size for x in self.operands for size in x.type.shape)
        for offset in (1, 1 + len(unnamed)):
            try:
                trial, _ = self._trace({name: largest + offset + index for index, name in enumerate(unnamed)})
            except Exception as error:
                raise self._varying_result_error(extra[number], out_dims[number], number) from error
            for index, (type, expected) in enumerate(zip(trial.out_types, named.out_types, strict=True)):
                if type != expected:
                    raise self._varying_result_error(extra[index] or unnamed, out_dims[index], index)
        operands: list[Any] = []
        in_dims: list[NamedDims] = []
        for x, dims in zip(self.operands, self.in_dims, strict=True):
            dim_of_name = {name: dim for dim, name in dims.names.items()}
            moved = [dim_of_name[name] for name in unnamed if name in dim_of_name]
            order = (*(dim for dim in range(x.type.ndim) if dim not in moved), *moved)
            operands.append(permute(x, order))
            kept = {order.index(dim): name for dim, name in dims.names.items() if name not in unnamed}
            in_dims.append(NamedDims(kept, None, dims.text))
        return operands, in_dims, self._trace({name: self.sizes[name] for name in unnamed})

    def _varying_result_error(self, extra: Sequence[Name], dims: NamedDims, number: int) -> ValueError:
        return ValueError(
            f"xmap of {describe_function(self.spec.fun)}: result {number} varies along {', '.join(map(repr, extra))}, "
            "which "
            f"out_axes {dims.text} do not have. Reduce over it, for example with `lax.psum(x, {extra[0]!r})`, or add "
            "it to out_axes."
        )

    def _move_dims(self, x: Array, names: list[Name | None], dims: NamedDims, number: int) -> Array:
        """Move the named dims of a result to their positions in `out_axes`."""
        for name in dims.names.values():
            if name not in names:  # the result does not vary along the name
                x, names = batch_dim_at(x, None, 0, self.sizes[name]), [name, *names]
        rank = len(names)
        if dims.rank not in (None, rank) or any(dim >= rank for dim in dims.names):
            unnamed_type = x.type.without(tuple(dim for dim, name in enumerate(names) if name is not None))
            hint = " A list must have one entry per dim, or end with `...`." if dims.rank is not None else ""
            raise ValueError(
                f"xmap of {describe_function(self.spec.fun)}: out_axes {dims.text} do not match result {number}, which "
                "is "
                f"{unnamed_type} and has rank {rank} with its named dims.{hint}"
            )
        others = iter([dim for dim, name in enumerate(names) if name is None])
        order = tuple(names.index(dims.names[d]) if d in dims.names else next(others) for d in range(rank))
        return self.spec.constrain(permute(x, order), dims)


@final
@dataclass(frozen=True, eq=False)
class _Mapped:
    """A program over arrays with their named dims, and the name (or None) of each dim of each result."""

    program: Program
    names: list[list[Name | None]]


def _extra_names(names: Sequence[Name | None], dims: NamedDims) -> list[Name]:
    """Return the names that a result varies along, but that its `out_axes` do not have."""
    return [name for name in names if name is not None and name not in dims.all]


def _mesh_axes(label: str, name: Name, resource: object) -> tuple[Any, ...]:
    """Return the mesh axes and loops of one entry of `axis_resources`."""
    axes = (resource,) if isinstance(resource, (str, SerialLoop)) else resource
    if not isinstance(axes, tuple) or any(not isinstance(axis, (str, SerialLoop)) for axis in axes):
        raise TypeError(
            f"{label}: axis_resources maps {name!r} to {resource!r}: pass the name of a mesh axis, a SerialLoop, or a "
            "tuple of them"
        )
    names = [axis for axis in axes if isinstance(axis, str)]
    if len(set(names)) != len(names):
        raise ShardingError(f"{label}: axis_resources maps {name!r} to {axes}, in which an axis repeats")
    return axes


class _EnclosingXmaps(threading.local):
    """The mesh axes that the xmaps being traced by this thread use, with their names."""

    def __init__(self) -> None:
        self.used_axes: dict[str, Name] = {}

    @contextmanager
    def using(self, resources: Mapping[Name, tuple[str, ...]]) -> Iterator[None]:
        before = self.used_axes
        self.used_axes = before | {axis: name for name, axes in resources.items() for axis in axes}
        try:
            yield
        finally:
            self.used_axes = before


_enclosing = _EnclosingXmaps()


set_public_names(__name__, __all__)
