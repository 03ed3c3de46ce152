"""xmap: a function of arrays in which some dims go by name, as a function of arrays in which all go by place.

    in     a function that is written for what is left of its arguments once the named dims are taken out
    out    a function of whole arrays, of which `in_axes` and `out_axes` say which dims have which names

The function is staged once, for the smaller arrays, and its program is mapped over one name after the other by the
rules that `vmap` has. So collectives along a name become ordinary ops along a dim, and where names are given to axes of
a mesh, only the dims at the border are pinned: the planner does the rest, as it does everywhere.
"""

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, NoReturn, final

from shardwise import tree, tree_util
from shardwise.api.arguments import argument_names, array_leaves, check_function, described, function_name, misfit
from shardwise.api.flatten import Flat
from shardwise.api.jit import constrain, jit
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_at
from shardwise.compiler.ops.shape.movement import permuted
from shardwise.compiler.shardings.mesh import Mesh, in_force
from shardwise.compiler.shardings.spec import UNCONSTRAINED, PartitionSpec
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.errors import ShardingError, not_here
from shardwise.execute.traceback_filter import boundary
from shardwise.runtime.client import default_backend
from shardwise.runtime.sharding import NamedSharding

__all__ = ["xmap"]

Function = Callable[..., Any]
Name = Hashable


def xmap(
    fun: Function,
    in_axes: Any,
    out_axes: Any,
    *,
    axis_sizes: Mapping[Name, int] = MappingProxyType({}),
    axis_resources: Mapping[Name, Any] = MappingProxyType({}),
    donate_argnums: int | Sequence[int] = (),
    backend: str | None = None,
) -> Function:
    """`fun`, written for arrays without their named dims, over arrays that have them.

    `in_axes` and `out_axes` (tree prefixes of the positional arguments and of the results) have for each array the
    names of its dims: a list with one entry a dim (None has no name; a last `...` stands for all further dims, which
    have none), or a dict from dims to names. What `fun` sees has no named dims. Along each name it computes by
    collectives (`lax.psum`, `lax.axis_index`) and by reductions that are given a name as axis (`jnp.mean(x, "batch")`).
    A result that does not differ along a name that its `out_axes` have is repeated along it.

    A name that `out_axes` do not have must be gone from the result. Where it is not, no `out_axes` have it and `fun`
    never says it, `fun` is read once more with the dim as the last one of each array that has it: what reduces whole
    arrays, as `x.sum()` does, then reduces it too, and the result must come out with the shape that it has without the
    dim. All else is an error.

    `axis_sizes`: the sizes of names; needed for one that no argument has. `axis_resources`: the axis of the mesh in
    force, or the axes, along which the dims of a name are cut. `donate_argnums` are as `jit` takes them.

    >>> rows = jax.experimental.maps.xmap(lambda x: x.sum(), in_axes=["batch", "features"], out_axes=["batch"])
    >>> rows(jnp.arange(6).reshape(2, 3))
    Array([ 3, 12], dtype=int32)
    """
    check_function("xmap", fun)
    asked = _Request.of(fun, in_axes, out_axes, axis_sizes, axis_resources)
    if backend is not None and backend != default_backend():
        raise NotImplementedError(f"xmap of {described(fun)}: backend {backend!r} is not here: leave it out")

    @wraps(fun)
    def whole(*args: Any) -> Any:
        return asked.run(args)

    compiled = jit(whole, donate_argnums=donate_argnums)

    @wraps(fun)
    @boundary
    def call(*args: Any, **keywords: Any) -> Any:
        if keywords:
            raise TypeError(
                f"xmap of {described(fun)} takes its arguments by position: in_axes have no place for "
                f"{', '.join(map(repr, keywords))}"
            )
        asked.check_mesh()
        return compiled(*args)

    return call


@final
@dataclass(frozen=True)
class _Dims:
    """The dims of an array that have names. `rank`: how many dims it has, where that is said. `text`: as given."""

    names: Mapping[int, Name]
    rank: int | None
    text: str

    @staticmethod
    def parse(what: str, given: Any) -> "_Dims":
        if isinstance(given, dict):
            names, rank = dict(given), None
        else:
            entries, rank = list(given), len(given)
            if entries and entries[-1] is ...:
                entries, rank = entries[:-1], None
            names = {dim: name for dim, name in enumerate(entries) if name is not None}
        if any(name is ... for name in names.values()):
            raise ValueError(f"{what} {given!r}: `...` stands for all further dims, and can only come last in a list")
        if wrong := [dim for dim in names if dim < 0]:
            raise ValueError(f"{what} {given!r}: dims count from 0, and {wrong[0]} is less")
        listed = list(names.values())
        if twice := [name for name in listed if listed.count(name) > 1]:
            raise ValueError(
                f"{what} {given!r}: an array has one dim of a name at most, and {twice[0]!r} is there twice"
            )
        return _Dims(names, rank, repr(given).replace("Ellipsis", "..."))

    @property
    def all(self) -> list[Name]:
        return list(self.names.values())

    def place(self, name: Name, mapped: Collection[Name]) -> int | None:
        """Which dim the name's is, in an array that has of its named dims only those `mapped`; None if it has none."""
        dim = next((dim for dim, mine in self.names.items() if mine == name), None)
        if dim is None:
            return None
        return dim - sum(other < dim and mine not in mapped for other, mine in self.names.items())


def _is_dims(node: Any) -> bool:
    """Whether a node of a tree is the names of one array's dims, rather than a tree of such."""
    if isinstance(node, dict):
        return all(type(dim) is int for dim in node) and tree_util.all_leaves(node.values())
    return isinstance(node, (list, tuple)) and tree_util.all_leaves([name for name in node if name is not None])


@final
@dataclass(frozen=True, eq=False)
class _Request:
    """What the user asked of one `xmap`, in trees of `_Dims`."""

    fun: Function
    in_axes: Any
    out_axes: Any
    sizes: Mapping[Name, int]
    resources: Mapping[Name, tuple[str, ...]]

    @staticmethod
    def of(
        fun: Function, in_axes: Any, out_axes: Any, sizes: Mapping[Name, int], resources: Mapping[Name, Any]
    ) -> "_Request":
        what = f"xmap of {described(fun)}"
        if isinstance(in_axes, list) and not _is_dims(in_axes):
            in_axes = tuple(in_axes)  # one entry for each positional argument
        ins = () if in_axes == () else _parsed(f"{what}: in_axes", in_axes)
        outs = _parsed(f"{what}: out_axes", out_axes)
        for name, size in sizes.items():
            if type(size) is not int or size < 0:
                raise TypeError(f"{what}: axis_sizes has {size!r} for {name!r}: a size is an integer of 0 or more")
        defined = [*sizes, *(name for dims in _leaves(ins) for name in dims.all)]
        wanted = [name for dims in _leaves(outs) for name in dims.all]
        for where, names in (("out_axes", wanted), ("axis_resources", list(resources))):
            if unknown := [name for name in names if name not in defined]:
                raise ValueError(
                    f"{what}: {where} has {unknown[0]!r}, which is a name of no argument's dim, and axis_sizes does "
                    f"not have it. The names are {', '.join(dict.fromkeys(map(repr, defined))) or 'none'}."
                )
        asked = _Request(fun, ins, outs, dict(sizes), {name: _axes(what, name, resources[name]) for name in resources})
        for dims in (*_leaves(ins), *_leaves(outs)):
            asked._check_apart(dims)
        return asked

    def _check_apart(self, dims: _Dims) -> None:
        """No two dims of one array can be cut along one axis."""
        taken: dict[str, Name] = {}
        for name in dims.names.values():
            for axis in self.resources.get(name, ()):
                if axis in taken:
                    raise ShardingError(
                        f"xmap of {described(self.fun)}: axis_resources puts {taken[axis]!r} and {name!r} on the mesh "
                        f"axis {axis!r}, and {dims.text} has both: an axis can cut one dim only"
                    )
                taken[axis] = name

    def check_mesh(self) -> None:
        """The mesh in force has the axes of the resources, and no xmap around has given them to its own names."""
        what = f"xmap of {described(self.fun)}: axis_resources puts"
        for name, axes in self.resources.items():
            for axis in axes:
                if in_force.mesh is None:
                    raise ShardingError(
                        f"{what} {name!r} on the mesh axis {axis!r}, and no mesh is in force. Set the one that is "
                        "meant, with `with mesh:` or `set_mesh(mesh)`."
                    )
                if axis not in in_force.mesh.shape:
                    raise ShardingError(f"{what} {name!r} on {axis!r}, but {in_force.mesh.abstract.unknown_axis(axis)}")
                if axis in _around.held:
                    raise ShardingError(
                        f"{what} {name!r} on the mesh axis {axis!r}, which an xmap around it has given to "
                        f"{_around.held[axis]!r}: an axis can cut one dim only"
                    )

    def run(self, args: tuple[Any, ...]) -> Any:
        """The results for whole arguments."""
        leaves, structure = array_leaves(self.fun, args, {})
        given = self.given("in_axes", self.in_axes, args)
        operands = [as_operand(leaf) for leaf in leaves]
        call = _Call(self, structure, operands, given, self._sizes(operands, given, argument_names(self.fun, args, {})))
        return call.results()

    def given(self, what: str, prefix: Any, of: Any) -> list[_Dims]:
        """For each array, the names of its dims."""
        try:
            return tree.broadcast_prefix(prefix, of, lambda node: isinstance(node, _Dims))
        except tree.TreeMismatch as mismatch:
            raise ValueError(f"xmap of {described(self.fun)}: {what} do not fit.\n  {misfit(mismatch, what)}") from None

    def _sizes(self, operands: Sequence[Any], given: Sequence[_Dims], labels: Sequence[str]) -> dict[Name, int]:
        """The size of every name, on which all must agree."""
        what = f"xmap of {described(self.fun)}"
        found: dict[Name, dict[str, int]] = {name: {"axis_sizes says": size} for name, size in self.sizes.items()}
        for x, dims, label in zip(operands, given, labels, strict=True):
            rank = x.type.ndim
            if dims.rank not in (None, rank) or any(dim >= rank for dim in dims.names):
                further = " A list has an entry for each dim, or ends in `...`." if dims.rank is not None else ""
                raise ValueError(f"{what}: in_axes {dims.text} do not fit {label}, {x.type} of rank {rank}.{further}")
            for dim, name in dims.names.items():
                found.setdefault(name, {})[f"{label} has"] = x.type.shape[dim]
        for name, sizes in found.items():
            if len(set(sizes.values())) > 1:
                lines = "".join(f"\n  {who} {size}" for who, size in sizes.items())
                raise ValueError(f"{what}: the dims of the name {name!r} must have one size:{lines}")
        return {name: next(iter(sizes.values())) for name, sizes in found.items()}

    def laid(self, x: Any, dims: _Dims) -> Any:
        """A whole array, with its named dims along the axes of the mesh that they are given to."""
        if not any(self.resources.get(name) for name in dims.names.values()):
            return x
        entries = [self.resources.get(dims.names[d]) if d in dims.names else None for d in range(x.type.ndim)]
        mesh = in_force.mesh
        assert isinstance(mesh, Mesh)
        spec = PartitionSpec(*(axes if axes else UNCONSTRAINED for axes in entries))
        return constrain(x, NamedSharding(mesh, spec))


@final
class _Call:
    """One call: whole arguments, the names of their dims, and the sizes of the names."""

    def __init__(
        self,
        asked: _Request,
        structure: tree.Structure,
        operands: Sequence[Any],
        given: Sequence[_Dims],
        sizes: Mapping[Name, int],
    ):
        self.asked = asked
        self.flat = Flat(asked.fun, structure)
        self.operands = [asked.laid(x, dims) for x, dims in zip(operands, given, strict=True)]
        self.given = given
        self.sizes = sizes

    def results(self) -> Any:
        """What `fun` gives, with the named dims where `out_axes` have them."""
        staged = self._staged({})
        operands = self.operands
        mapped = self._mapped(staged, self.given)
        wanted = self._wanted(mapped)
        if any(_left(names, dims) for names, dims in zip(mapped.names, wanted, strict=True)):
            operands, given, staged = self._reducing(mapped, wanted, staged[0])
            mapped = self._mapped(staged, given)
        found = replay(mapped.program, [*operands, *staged[1]])
        return self.flat.results.unflatten(
            [
                self._placed(x, names, dims, number)
                for number, (x, names, dims) in enumerate(zip(found, mapped.names, wanted, strict=True))
            ]
        )

    def _wanted(self, mapped: "_Mapped") -> list[_Dims]:
        results = self.flat.results.unflatten(list(range(len(mapped.names))))
        return self.asked.given("out_axes", self.asked.out_axes, results)

    def _staged(self, last: Mapping[Name, int]) -> tuple[Program, list[Any]]:
        """The program of `fun`, over arrays without named dims, and the values that it closes over.

        The names in `last` are no names here: their dims, of these sizes, are the last of the arrays that have them.
        """
        types: list[ArrayType] = []
        for x, dims in zip(self.operands, self.given, strict=True):
            kept = x.type.without(tuple(dims.names)).shape
            types.append(x.type.with_shape((*kept, *(size for name, size in last.items() if name in dims.all))))
        axes = {name: size for name, size in self.sizes.items() if name not in last}
        with _around.holding(self.asked.resources):
            return build(self.flat, types, function_name(self.asked.fun), axes)

    def _mapped(self, staged: tuple[Program, list[Any]], given: Sequence[_Dims]) -> "_Mapped":
        """A staged function over all names of arguments whose dims are called so."""
        program, captured = staged
        names: list[list[Name | None]] = [[None] * type.ndim for type in program.out_types]
        mapped: list[Name] = []  # so far
        for name, size in self.sizes.items():
            if name not in program.axis_names and all(name not in dims.all for dims in given):
                continue
            places = [dims.place(name, mapped) for dims in given]
            axis = BatchAxis(size, name, self.asked.resources.get(name, ()))
            program, out_dims = vmap_program(program, axis, (*places, *(None,) * len(captured)))
            mapped.append(name)
            for mine, at in zip(names, out_dims, strict=True):
                if at is not None:
                    mine.insert(at, name)
        return _Mapped(program, names)

    def _reducing(
        self, mapped: "_Mapped", wanted: Sequence[_Dims], named: Program
    ) -> tuple[list[Any], list[_Dims], tuple[Program, list[Any]]]:
        """The operands, their names and `fun`, staged where what was left of names that nobody says are last dims."""
        left = [_left(names, dims) for names, dims in zip(mapped.names, wanted, strict=True)]
        lost = [name for name in self.sizes if any(name in names for names in left)]
        number = next(number for number, names in enumerate(left) if names)
        if any(name in named.axis_names or any(name in dims.all for dims in wanted) for name in lost):
            raise self._refusal(left[number], wanted[number], number)
        # Of a size that no other dim has, a dim cannot be taken for another: where it is not reduced, that shows. Once,
        # it could meet a dim that `fun` makes.
        largest = max(size for x in self.operands for size in x.type.shape)
        for more in (1, 1 + len(lost)):
            try:
                tried, _ = self._staged({name: largest + more + place for place, name in enumerate(lost)})
            except Exception as error:
                raise self._refusal(left[number], wanted[number], number) from error
            for place, (type, expected) in enumerate(zip(tried.out_types, named.out_types, strict=True)):
                if type != expected:
                    raise self._refusal(left[place] or lost, wanted[place], place)
        operands: list[Any] = []
        given: list[_Dims] = []
        for x, dims in zip(self.operands, self.given, strict=True):
            at = {name: dim for dim, name in dims.names.items()}
            moved = [at[name] for name in lost if name in at]
            order = (*(dim for dim in range(x.type.ndim) if dim not in moved), *moved)
            operands.append(permuted(x, order))
            kept = {order.index(dim): name for dim, name in dims.names.items() if name not in lost}
            given.append(_Dims(kept, None, dims.text))
        return operands, given, self._staged({name: self.sizes[name] for name in lost})

    def _refusal(self, left: Sequence[Name], dims: _Dims, number: int) -> ValueError:
        return ValueError(
            f"xmap of {described(self.asked.fun)}: result {number} differs along {', '.join(map(repr, left))}, which "
            f"out_axes {dims.text} do not have. Reduce over it, as `lax.psum(x, {left[0]!r})` does, or give it a place "
            "in out_axes."
        )

    def _placed(self, x: Any, names: list[Name | None], dims: _Dims, number: int) -> Any:
        """A result with its named dims where they are wanted."""
        for name in dims.names.values():
            if name not in names:  # it is the same along the name
                x, names = batch_at(x, None, 0, self.sizes[name]), [name, *names]
        rank = len(names)
        if dims.rank not in (None, rank) or any(dim >= rank for dim in dims.names):
            own = x.type.without(tuple(dim for dim, name in enumerate(names) if name is not None))
            further = " A list has an entry for each dim, or ends in `...`." if dims.rank is not None else ""
            raise ValueError(
                f"xmap of {described(self.asked.fun)}: out_axes {dims.text} do not fit result {number}, which is {own} "
                f"and with its named dims has rank {rank}.{further}"
            )
        others = iter([dim for dim, name in enumerate(names) if name is None])
        order = tuple(names.index(dims.names[d]) if d in dims.names else next(others) for d in range(rank))
        return self.asked.laid(permuted(x, order), dims)


@final
@dataclass(frozen=True, eq=False)
class _Mapped:
    """A program over whole arrays; `names` has for each dim of each result its name."""

    program: Program
    names: list[list[Name | None]]


def _left(names: Sequence[Name | None], dims: _Dims) -> list[Name]:
    """The names that a result has and should not."""
    return [name for name in names if name is not None and name not in dims.all]


def _parsed(what: str, axes: Any) -> Any:
    """A tree of names of dims, each checked."""

    def entry(given: Any) -> _Dims:
        if not _is_dims(given):
            raise TypeError(
                f"{what}: names of dims are a list, such as ['batch', ...], or a dict, such as {{0: 'batch'}}, not "
                f"{given!r}. An array without named dims has {{}}."
            )
        return _Dims.parse(what, given)

    if axes is None or axes == ():
        raise TypeError(f"{what} {axes!r} have no entry: an array without named dims has {{}}")
    return tree.map(entry, axes, is_leaf=lambda node: node is None or _is_dims(node))


def _leaves(axes: Any) -> list[_Dims]:
    return tree.leaves(axes, lambda node: isinstance(node, _Dims))


def _axes(what: str, name: Name, given: Any) -> tuple[str, ...]:
    """The mesh axes that a name is given to."""
    axes = (given,) if isinstance(given, str) else given
    if not isinstance(axes, tuple) or any(not isinstance(axis, str) for axis in axes):
        raise TypeError(
            f"{what}: axis_resources puts {name!r} on {given!r}: give the name of a mesh axis, or a tuple of names. "
            "Loops over a name are not here: `lax.map` runs a function piece by piece."
        )
    if len(set(axes)) != len(axes):
        raise ShardingError(f"{what}: axis_resources puts {name!r} on {axes}, in which an axis repeats")
    return axes


class _Around(threading.local):
    """The mesh axes that the xmaps being traced by this thread have given to names."""

    def __init__(self) -> None:
        self.held: dict[str, Name] = {}

    @contextmanager
    def holding(self, resources: Mapping[Name, tuple[str, ...]]) -> Iterator[None]:
        before = self.held
        self.held = before | {axis: name for name, axes in resources.items() for axis in axes}
        try:
            yield
        finally:
            self.held = before


_around = _Around()


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.experimental.maps", name, __all__)
