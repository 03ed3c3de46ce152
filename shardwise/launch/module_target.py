"""Files with a module of StableHLO or an exported function, as targets of `shardwise explain`.

    step.mlir, step.mlirbc    a module, as text or MLIR bytecode
    step.bin                  a file of `jax.export`, or MLIR bytecode

The file states types, and maybe shardings and a mesh. The command line adds a mesh without devices, and pins: the
shardings of single arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.base.progress import Task
from shardwise.base.symbolic_dim import evaluate_dim
from shardwise.errors import ShardingError
from shardwise.export.abstract_array import AbstractArray
from shardwise.export.exported import Exported, argument_names, deserialize
from shardwise.export.module_function import module_mesh
from shardwise.export.safety_checks import DisabledSafetyCheck
from shardwise.launch.load_target import CommandError
from shardwise.sharding import AbstractMesh, NamedSharding, PartitionSpec
from shardwise.stablehlo.load import load
from shardwise.stablehlo.parse import is_bytecode, parse

_MODULE, _EXPORTED = (".mlir", ".mlirbc"), ".bin"
UNSHARDED = "None"  # a dim of a pin without axes


@final
@dataclass(frozen=True)
class ModuleTarget:
    """A function that a file contains.

    Attributes:
        function: the function. An exported function accepts the leaves of its arguments.
        in_types: the shape and dtype of each argument.
        in_names: the names of the arguments.
        in_shardings: the sharding that the file states for each argument, or None.
        mesh: the mesh to plan for, which has no devices.
    """

    function: Callable[..., Any]
    in_types: tuple[Any, ...]
    in_names: tuple[str, ...]
    in_shardings: tuple[NamedSharding | None, ...]
    mesh: AbstractMesh

    def call_arguments(self, pins: Sequence[str]) -> tuple[Any, ...]:
        """Return the arguments with the shardings that the file and the pins state. Others are replicated.

        Args:
            pins: the pins, such as `x=data,None`. A pin replaces the sharding that the file states.

        Raises:
            CommandError: if a pin has another form, or names no argument, or if nothing is sharded.
            ShardingError: if the axes of a pin are not those of the mesh.
        """
        shardings = dict(enumerate(self.in_shardings))
        pinned: set[int] = set()
        for text in pins:
            index, spec = self._parse_pin(text)
            if index in pinned:
                raise CommandError(f"--pin {text!r}: {self.in_names[index]!r} is pinned twice")
            pinned.add(index)
            try:
                shardings[index] = NamedSharding(self.mesh, spec)
            except ShardingError as error:
                raise ShardingError(f"--pin {text!r}: {error}") from error
        if not any(sharding is not None and any(sharding.spec) for sharding in shardings.values()):
            raise CommandError(
                f"no argument is sharded: pin one, such as --pin {self.in_names[0] if self.in_names else 'x'}="
                f"{self.mesh.axis_names[0]}. Its arguments: {self._described()}"
            )
        replicated = NamedSharding(self.mesh, PartitionSpec())
        return tuple(
            ShapeDtypeStruct(type.shape, type.dtype, sharding=shardings[index] or replicated)
            for index, type in enumerate(self.in_types)
        )

    def _parse_pin(self, text: str) -> tuple[int, PartitionSpec]:
        """Parse `x=data,None` or `1=data+model`: an argument, and the axes of each of its first dims."""
        name, _, axes = text.rpartition("=")
        parts = [part.strip() for part in axes.split(",")]
        if not name or not all(part for dim in parts for part in dim.split("+")):
            raise CommandError(
                f"--pin {text!r}: write ARGUMENT=AXES with the axes of each dim, such as x=data,{UNSHARDED} or "
                "0=data+model"
            )
        index = self._index(name, text)
        type = self.in_types[index]
        if len(parts) > len(type.shape):
            raise CommandError(f"--pin {text!r}: {name!r} is {type}, and the pin has {len(parts)} dims")
        dims = [() if dim == UNSHARDED else tuple(dim.split("+")) for dim in parts]
        return index, PartitionSpec(*(dim[0] if len(dim) == 1 else dim or None for dim in dims))

    def _index(self, name: str, text: str) -> int:
        """Return the index of an argument that is named by its name or its index."""
        if name in self.in_names:
            return self.in_names.index(name)
        number = name.removeprefix("arg")
        if number.isdecimal() and int(number) < len(self.in_names):
            return int(number)
        near = get_close_matches(name, self.in_names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Its arguments: {self._described()}"
        raise CommandError(f"--pin {text!r}: there is no argument {name!r}. {hint}")

    def _described(self) -> str:
        types = zip(self.in_names, self.in_types, strict=True)
        return ", ".join(f"{name} {type}" for name, type in types) or "none"


def is_module_file(target: str) -> bool:
    """Return whether a target is a file with a module or an exported function."""
    return target.endswith((*_MODULE, _EXPORTED))


def load_module(target: str, mesh: AbstractMesh | None, sizes: Mapping[str, Any]) -> ModuleTarget:
    """Read a file. MLIR parses it in another process first, because a hostile module may crash the parser.

    Args:
        target: the path of the file.
        mesh: the mesh to plan for; None for the mesh that the file states.
        sizes: the sizes of the symbolic dims of an exported function.

    Raises:
        CommandError: if the file is missing or empty, or if there is no mesh.
        ProgramError: if its content is not valid.
        ShardingError: if it states a mesh of other sizes.
        UnsupportedError: if it has a type or a sharding that is not supported.
    """
    for name, size in sizes.items():
        if not isinstance(size, int):
            raise CommandError(f"--set {name}={size}: the size of a symbolic dim is an integer")
    path = Path(target)
    if not path.is_file():
        raise CommandError(f"there is no file {target!r}")
    data = path.read_bytes()
    if not data.strip():
        raise CommandError(f"the file {target!r} is empty")
    with Task(f"reading {target}"):
        if target.endswith(_EXPORTED) and not is_bytecode(data):
            return _exported_target(deserialize(data), mesh, sizes)
        if sizes:
            raise CommandError(f"--set {next(iter(sizes))}: only an exported function has symbolic dims")
        return _module_target(data, mesh)


def _module_target(data: bytes, mesh: AbstractMesh | None) -> ModuleTarget:
    """Return the function of a module of StableHLO."""
    function = load(data, mesh=mesh, isolated=True)
    stated = function.mesh.abstract if function.mesh is not None else mesh
    if stated is None:
        raise CommandError("the module states no mesh: write --mesh, such as --mesh data=8")
    if function.num_partitions not in (1, stated.size):
        raise ShardingError(f"the module is for {function.num_partitions} devices, and the mesh {stated} has others")
    return ModuleTarget(function, function.in_types, function.in_names, function.in_shardings, stated)


def _exported_target(exported: Exported, mesh: AbstractMesh | None, sizes: Mapping[str, Any]) -> ModuleTarget:
    """Return an exported function. It may be planned for a platform that it was not exported for: it does not run."""
    module = parse(exported.mlir_module_serialized, isolated=True)
    stated = module_mesh(exported) if mesh is None else mesh
    if stated is None:
        raise CommandError("the exported function states no mesh: write --mesh, such as --mesh data=8")
    unchecked = replace(
        exported, disabled_safety_checks=(*exported.disabled_safety_checks, DisabledSafetyCheck.platform())
    )

    def function(*args: Any) -> Any:
        positional, keywords = unchecked.in_tree.unflatten(args)
        return unchecked.call(*positional, **keywords)

    function.__name__ = function.__qualname__ = exported.fun_name  # for the explanation
    names = argument_names(exported)
    kept, main_names = exported.module_kept_var_idx, module.main.in_names
    for index, name in zip(kept, main_names[len(main_names) - len(kept) :], strict=True):  # after sizes and platform
        names[index] = name
    return ModuleTarget(
        function,
        tuple(_sized(type, name, sizes) for type, name in zip(exported.in_avals, names, strict=True)),
        tuple(names),
        exported.in_shardings_jax(stated),
        stated,
    )


def _sized(type: AbstractArray, name: str, sizes: Mapping[str, Any]) -> AbstractArray:
    """Return a type with numbers for its symbolic dims."""
    try:
        return AbstractArray(tuple(evaluate_dim(dim, sizes) for dim in type.shape), type.dtype)
    except KeyError as error:
        raise CommandError(f"{name!r} is {type}: write --set {error.args[0]}=SIZE") from error
