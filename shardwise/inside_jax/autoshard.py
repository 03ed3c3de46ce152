"""`autoshard` for functions of real JAX: the shardings that it returns are JAX's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.ir.program import Program
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip as chip_named
from shardwise.compiler.plan.hardware import chip_of
from shardwise.compiler.report.report import Plan
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.transforms.replay import replay
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.jit import call_of, jit
from shardwise.inside_jax.read import read_jaxpr
from shardwise.inside_jax.tracing_context import tracing_context
from shardwise.layout_search.autoshard import autoshard as search
from shardwise.layout_search.result import AutoSharding, ShardedStep


@final
class JaxAutoSharding:
    """The mesh and the shardings that `autoshard` chose for a step of JAX. It prints as a table of alternatives.

    Attributes:
        mesh: JAX's mesh; an AbstractMesh if the devices are not present.
        in_shardings: the sharding of each argument, as a tuple of trees like the arguments.
        out_shardings: the shardings of the results, as a tree like the results; None for those that the plan decides.
        found: the result of the search, with all alternatives, the plan and the activations.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        found: AutoSharding,
        mesh: _jax.Mesh,
        in_shardings: tuple[Any, ...],
        out_shardings: object,
    ):
        self._step = step
        self.found = found
        self.mesh = mesh
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings

    @property
    def plan(self) -> Plan:
        """The plan of the step with these shardings."""
        return self.found.plan

    def jit(self) -> ShardedStep:
        """Return the step, which Shardwise plans with these shardings and within the memory limit, and JAX runs."""
        step: Any = jit(self._step, in_shardings=self.in_shardings, out_shardings=self.out_shardings)
        limit = self.found.memory_limit
        return ShardedStep(step, {} if limit is None else {"memory_limit": limit})

    def __str__(self) -> str:
        return str(self.found)

    __repr__ = __str__


def autoshard(
    step: Callable[..., Any],
    *,
    devices: Sequence[Any] | None = None,
    mesh: object = None,
    hardware: str | Chip | None = None,
    count: int | None = None,
    memory_limit: int | None = None,
) -> Callable[..., JaxAutoSharding]:
    """Return a function that chooses the mesh and the shardings of all arguments and results of a step of JAX.

    Nothing runs. Shardings of arguments, and constraints in the step, are kept.

    Args:
        step: the step, a function of JAX without keyword arguments.
        devices: JAX's devices to use; by default all.
        mesh: the mesh of JAX to use, instead of `devices`.
        hardware: the hardware to plan for, as in `shardwise.autoshard`; by default, the devices.
        count: the number of chips of `hardware`, instead of `devices`.
        memory_limit: the bytes that each device may hold; by default, its memory.

    Returns:
        A function of the arguments of the step, arrays or ShapeDtypeStructs of JAX, that returns a JaxAutoSharding.

    Raises:
        AutoshardError: when called, if no plan fits in memory.
    """

    def call(*args: object) -> JaxAutoSharding:
        traced = _jax.trace_call(step, args, {})
        adopted = _Adopted(traced)
        present = None if mesh is not None or count is not None else list(devices or _jax.jax.devices())
        found = search(
            adopted.function,
            mesh=None if mesh is None else translate.mesh(mesh),
            hardware=_chip(hardware, mesh, present),
            count=len(present) if present is not None else count,
            memory_limit=memory_limit,
        )(*adopted.args)
        chosen = mesh if mesh is not None else _mesh_of(found.mesh.abstract, present)
        ins = adopted.in_shardings(found.in_shardings, chosen)
        return JaxAutoSharding(step, found, chosen, ins, adopted.out_shardings(found.out_shardings, chosen))

    return call


def _chip(hardware: str | Chip | None, mesh: _jax.Mesh, devices: Sequence[Any] | None) -> Chip:
    """Return the hardware to plan for."""
    if hardware is not None:
        return chip_named(hardware)
    if isinstance(mesh, _jax.Mesh):
        return chip_of(mesh.devices.flat[0].device_kind)
    return chip_of(devices[0].device_kind if devices else "cpu")


def _mesh_of(mesh: AbstractMesh, devices: Sequence[Any] | None) -> Any:
    """Return a mesh of JAX like the chosen one, on the devices if they are present."""
    types = (_jax.jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    if devices is None:
        return _jax.AbstractMesh(mesh.axis_sizes, mesh.axis_names, types)
    return _jax.jax.make_mesh(mesh.axis_sizes, mesh.axis_names, types, devices=devices)


@final
class _Adopted:
    """A traced function of JAX as one of Shardwise.

    Trees of JAX, whose nodes may be classes that are registered with JAX alone, are dicts here, by the same keys.

    Attributes:
        function: the function of Shardwise. Its last argument are the constants of the jaxpr.
        args: its arguments, as ShapeDtypeStructs.
    """

    def __init__(self, traced: Any):
        call = call_of(traced.params, traced.names).placed(traced.args)
        with tracing_context(call.jaxpr, _jax.jax.default_backend()):
            program, inner = read_jaxpr(call.jaxpr, call.name, call.mesh)
        self._traced = traced
        self._constants = len(traced.args) - len(traced.names)
        self._in_paths = _paths(traced.in_tree)
        self._out_paths = _paths(traced.out_tree)
        structs = [
            ShapeDtypeStruct(
                type.shape, type.dtype, weak_type=type.weak, sharding=None if s is None else translate.named_sharding(s)
            )
            for type, s in zip(program.in_types, call.in_shardings, strict=False)
        ]
        # Constants are not pinned where there is no mesh yet.
        fixed = None if call.mesh is None else NamedSharding(translate.mesh(call.mesh), PartitionSpec())
        constants = [struct.update(sharding=fixed) for struct in structs[: self._constants]]
        constants += [ShapeDtypeStruct(x.shape, x.dtype, sharding=fixed) for x in inner]
        tree = _tree(self._in_paths, structs[self._constants :])
        self.args = (*(tree[0][number] for number in sorted(tree.get(0, {}))), constants)
        self.function = self._function(program, call.name)

    def _function(self, program: Program, name: str) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            constants = args[-1]
            tree = {0: dict(enumerate(args[:-1])), 1: {}}
            leaves = [_leaf(tree, path) for path in self._in_paths]
            results = replay(program, [*constants[: self._constants], *leaves, *constants[self._constants :]])
            return _tree(self._out_paths, results)

        function.__name__ = name
        return function

    def in_shardings(self, found: tuple[Any, ...], mesh: _jax.Mesh) -> tuple[Any, ...]:
        """Return the shardings of the arguments as trees of JAX."""
        tree = {0: dict(enumerate(found[:-1])), 1: {}}
        shardings = [translate.jax_sharding(_leaf(tree, path), mesh) for path in self._in_paths]
        return _jax.jax.tree.unflatten(self._traced.in_tree, shardings)[0]

    def out_shardings(self, found: Any, mesh: _jax.Mesh) -> Any:
        """Return the shardings of the results as a tree of JAX."""
        shardings = [_leaf(found, path) for path in self._out_paths]
        of_jax = [None if each is None else translate.jax_sharding(each, mesh) for each in shardings]
        return _jax.jax.tree.unflatten(self._traced.out_tree, of_jax)


def _paths(structure: Any) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each leaf of a tree of JAX."""
    numbered = _jax.jax.tree.unflatten(structure, range(structure.num_leaves))
    leaves, _ = _jax.jax.tree_util.tree_flatten_with_path(numbered)
    return [tuple(_key(entry) for entry in path) for path, _ in leaves]


def _key(entry: object) -> Any:
    """Return the key, index or attribute name of an entry of a path."""
    return next(getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name))


def _tree(paths: Sequence[tuple[Any, ...]], leaves: Sequence[Any]) -> Any:
    """Return nested dicts with the leaves at these paths."""
    if paths and not paths[0]:
        return leaves[0]
    tree: dict[Any, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return tree


def _leaf(tree: Mapping[Any, Any] | Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
