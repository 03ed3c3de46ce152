"""Serialized functions: the FlatBuffers file of `jax.export`, which JAX 0.10 to 0.12 read and write too."""

import math
from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeVar, final

from shardwise.api.transformations.float0 import float0
from shardwise.base._jaxlib import jaxlib_version
from shardwise.base.symbolic_dim import SymbolicScope, parse_dim
from shardwise.compiler.dtypes import KEY_DTYPES, SHORT_NAMES
from shardwise.compiler.shardings.mesh import AbstractDevice, AbstractMesh, AxisType
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import UnsupportedError
from shardwise.export.abstract_array import AbstractArray
from shardwise.export.exported_data import ExportedData
from shardwise.export.flatbuffer import Number, Numbers, Table, TableReader, read, write
from shardwise.export.safety_checks import DisabledSafetyCheck
from shardwise.export.tree_format import read_structure, structure_table

VERSION = 11  # of the schema below
_DEVICE_MEMORY = 1
_MAX_DEVICES = 1 << 20  # a damaged number must not exhaust the memory
T = TypeVar("T", bound=Hashable)


class _Exported(IntEnum):
    VERSION, NAME, IN_TREE, IN_AVALS, OUT_TREE = range(5)
    PLATFORMS, ORDERED_EFFECTS, UNORDERED_EFFECTS, DISABLED_CHECKS = range(9, 13)
    MODULE, CONVENTION, KEPT, CONSTANTS, VJP, DEVICES, TYPES, MESHES, SHARDINGS = range(13, 22)
    IN_TYPES, OUT_TYPES, IN_SHARDINGS, OUT_SHARDINGS, WRITER = range(22, 27)


class _Type(IntEnum):
    KIND, SHAPE, DTYPE, MEMORY = range(4)


class _Mesh(IntEnum):
    SIZES, NAMES, TYPES, DEVICE = range(4)


class _Device(IntEnum):
    KIND, CORES, PLATFORM = range(3)


class _Sharding(IntEnum):
    SPEC, MEMORY, MESH = range(1, 4)


class _Spec(IntEnum):
    DIMS, REDUCED, UNREDUCED = range(3)


class _Check(IntEnum):
    KIND, TARGET = range(2)


_PLATFORM_CHECK, _CUSTOM_CALL_CHECK = range(2)
_AXES = 0  # the only field of the entry of a spec
_AXIS_TYPES = {1: AxisType.Auto, 2: AxisType.Explicit, 3: AxisType.Manual}
_AXIS_TYPE_NUMBERS = {type: number for number, type in _AXIS_TYPES.items()}
_DTYPES: list[Any] = [
    *(SHORT_NAMES[name] for name in ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")),
    *(SHORT_NAMES[name] for name in ("f16", "f32", "f64", "c64", "c128", "bf16", "i4", "u4")),
    *(SHORT_NAMES[f"f8_{name}"] for name in ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
    float0,
    *(SHORT_NAMES[name] for name in ("f8_e4m3", "f8_e3m4", "f8_e8m0fnu", "f4_e2m1fn")),
    *(KEY_DTYPES[name] for name in ("threefry2x32", "rbg", "unsafe_rbg")),
]


@final
class _Index(Generic[T]):
    """Distinct items in the order in which they were added."""

    def __init__(self) -> None:
        self._positions: dict[T, int] = {}

    def add(self, item: T) -> int:
        """Return the position of an item."""
        return self._positions.setdefault(item, len(self._positions))

    @property
    def items(self) -> list[T]:
        return list(self._positions)


def write_exported(functions: Sequence[ExportedData]) -> bytes:
    """Return the file of a function, followed by its VJP, the VJP of that, and so on.

    Raises:
        TypeError: if the arguments or results have a dict with keys that are not strings.
        UnsupportedError: if the file cannot express a dtype.
        ValueError: if they have pytree nodes that are not registered.
    """
    return write(_exported_table(functions))


def _exported_table(functions: Sequence[ExportedData]) -> Table:
    function, *vjps = functions
    types, shardings, meshes = _Index[AbstractArray](), _Index[NamedSharding](), _Index[AbstractMesh]()
    in_types, out_types = ([types.add(aval) for aval in avals] for avals in (function.in_avals, function.out_avals))
    in_shardings, out_shardings = (
        [0 if each is None else 1 + shardings.add(each) for each in group]
        for group in (function._in_named_shardings, function._out_named_shardings)
    )
    table: dict[int, Any] = {
        _Exported.VERSION: Number("H", VERSION),
        _Exported.NAME: function.fun_name,
        _Exported.IN_TREE: structure_table(function.in_tree),
        _Exported.OUT_TREE: structure_table(function.out_tree),
        _Exported.PLATFORMS: list(function.platforms),
        _Exported.DISABLED_CHECKS: [_check_table(check) for check in function.disabled_safety_checks],
        _Exported.MODULE: function.mlir_module_serialized,
        _Exported.CONVENTION: Number("H", function.calling_convention_version),
        _Exported.KEPT: Numbers("H", function.module_kept_var_idx),
        _Exported.CONSTANTS: Number("b", function.uses_global_constants),
        _Exported.DEVICES: Number("I", function.nr_devices),
        _Exported.TYPES: [_type_table(type) for type in types.items],
        _Exported.SHARDINGS: [_sharding_table(each, meshes) for each in shardings.items],
        _Exported.MESHES: [_mesh_table(mesh) for mesh in meshes.items],
        _Exported.IN_TYPES: Numbers("I", in_types),
        _Exported.OUT_TYPES: Numbers("I", out_types),
        _Exported.IN_SHARDINGS: Numbers("I", in_shardings),
        _Exported.OUT_SHARDINGS: Numbers("I", out_shardings),
        _Exported.WRITER: jaxlib_version(),
    }
    if vjps:
        table[_Exported.VJP] = _exported_table(vjps)
    return table


def _type_table(type: AbstractArray) -> Table:
    if type.dtype not in _DTYPES:
        raise UnsupportedError(f"serialize: the file format has no elements of {type.dtype}: convert {type}")
    return {
        _Type.SHAPE: [str(size) for size in type.shape],
        _Type.DTYPE: Number("b", _DTYPES.index(type.dtype)),
        _Type.MEMORY: Number("b", _DEVICE_MEMORY),
    }


def _mesh_table(mesh: AbstractMesh) -> Table:
    table: dict[int, Any] = {
        _Mesh.SIZES: Numbers("I", mesh.axis_sizes),
        _Mesh.NAMES: list(mesh.axis_names),
        _Mesh.TYPES: Numbers("b", [_AXIS_TYPE_NUMBERS[type] for type in mesh.axis_types]),
    }
    device = mesh.abstract_device
    if device is not None:
        cores = {} if device.num_cores is None else {_Device.CORES: Number("I", device.num_cores)}
        table[_Mesh.DEVICE] = {_Device.KIND: device.device_kind, **cores, _Device.PLATFORM: device.platform}
    return table


def _sharding_table(sharding: NamedSharding, meshes: _Index[AbstractMesh]) -> Table:
    spec = sharding.spec
    dims = [() if dim is None else (dim,) if isinstance(dim, str) else tuple(dim) for dim in spec]
    table: dict[int, Any] = {
        _Sharding.SPEC: {
            _Spec.DIMS: [{_AXES: list(axes)} for axes in dims],
            _Spec.REDUCED: sorted(spec.reduced),
            _Spec.UNREDUCED: sorted(spec.unreduced),
        },
        _Sharding.MESH: Number("I", meshes.add(sharding.mesh.abstract)),
    }
    if sharding.nondefault_memory is not None:
        table[_Sharding.MEMORY] = sharding.nondefault_memory
    return table


def _check_table(check: DisabledSafetyCheck) -> Table:
    target = check.is_custom_call()
    if target is None:
        return {_Check.KIND: Number("b", _PLATFORM_CHECK)}
    return {_Check.KIND: Number("b", _CUSTOM_CALL_CHECK), _Check.TARGET: target}


def read_exported(blob: bytes) -> list[ExportedData]:
    """Return the function in a file, its VJP, the VJP of that, and so on.

    Raises:
        ProgramError: if the file is damaged.
        UnsupportedError: if it was written by a version of JAX before 0.10.
        ValueError: if it has pytree nodes that are not registered.
    """
    functions, table = [], read(blob)
    while True:
        functions.append(_read_function(table))
        vjp = table.table(_Exported.VJP)
        if vjp is None:
            return functions
        table = vjp


def _read_function(table: TableReader) -> ExportedData:
    if table.tables(_Exported.IN_AVALS) and not table.numbers(_Exported.IN_TYPES, "I"):
        raise UnsupportedError(
            "deserialize: the file was written by a version of JAX before 0.10. Export the function again, with a "
            "newer one."
        )
    scope = SymbolicScope()
    types = [_read_type(each, scope) for each in table.tables(_Exported.TYPES)]
    devices = table.number(_Exported.DEVICES, "I")
    if devices > _MAX_DEVICES:
        raise table.error(f"{devices:,} devices are more than {_MAX_DEVICES:,}")
    meshes = [_read_mesh(each, devices) for each in table.tables(_Exported.MESHES)]
    shardings = [None, *(_read_sharding(each, meshes) for each in table.tables(_Exported.SHARDINGS))]
    in_avals, out_avals = (
        tuple(_item(table, types, index) for index in table.numbers(group, "I"))
        for group in (_Exported.IN_TYPES, _Exported.OUT_TYPES)
    )
    in_shardings, out_shardings = (
        tuple(_item(table, shardings, index) for index in table.numbers(group, "I"))
        for group in (_Exported.IN_SHARDINGS, _Exported.OUT_SHARDINGS)
    )
    kept = table.numbers(_Exported.KEPT, "H")
    name, trees = table.text(_Exported.NAME), [table.table(each) for each in (_Exported.IN_TREE, _Exported.OUT_TREE)]
    if name is None or trees[0] is None or trees[1] is None:
        raise table.error("the name or the pytree structures are missing")
    in_tree, out_tree = read_structure(trees[0]), read_structure(trees[1])
    counts = [in_tree.num_leaves, out_tree.num_leaves]
    if counts != [len(in_avals), len(out_avals)] or counts != [len(in_shardings), len(out_shardings)]:
        raise table.error("the numbers of types, shardings and leaves of arguments and results differ")
    if kept != sorted(set(kept)) or any(index >= len(in_avals) for index in kept):
        raise table.error(f"the module has the arguments {kept} of {len(in_avals)}")
    return ExportedData(
        fun_name=name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=out_tree,
        out_avals=out_avals,
        _in_named_shardings=in_shardings,
        _out_named_shardings=out_shardings,
        nr_devices=devices,
        platforms=tuple(table.texts(_Exported.PLATFORMS)),
        ordered_effects=_read_effects(table, _Exported.ORDERED_EFFECTS),
        unordered_effects=_read_effects(table, _Exported.UNORDERED_EFFECTS),
        disabled_safety_checks=tuple(map(_read_check, table.tables(_Exported.DISABLED_CHECKS))),
        mlir_module_serialized=table.content(_Exported.MODULE),
        calling_convention_version=table.number(_Exported.CONVENTION, "H"),
        module_kept_var_idx=tuple(kept),
        uses_global_constants=bool(table.number(_Exported.CONSTANTS, "b")),
    )


def _item(table: TableReader, items: Sequence[Any], index: int) -> Any:
    if index >= len(items):
        raise table.error(f"index {index} is out of bounds: there are {len(items)} items")
    return items[index]


def _read_effects(table: TableReader, group: int) -> tuple[str, ...]:
    return tuple(effect.text(0) or "" for effect in table.tables(group))


def _read_type(table: TableReader, scope: SymbolicScope) -> AbstractArray:
    dtype = _item(table, _DTYPES, table.number(_Type.DTYPE, "B"))
    try:
        shape = tuple(parse_dim(text, scope) for text in table.texts(_Type.SHAPE))
    except ValueError as error:
        raise table.error(str(error)) from None
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise table.error(f"a size of the shape {shape} is negative")
    return AbstractArray(shape, dtype)


def _read_mesh(table: TableReader, devices: int) -> AbstractMesh:
    sizes, types = table.numbers(_Mesh.SIZES, "I"), table.numbers(_Mesh.TYPES, "b")
    if math.prod(sizes) > max(devices, 1):
        raise table.error(f"a mesh of sizes {sizes} has more than {devices} devices")
    device = table.table(_Mesh.DEVICE)
    abstract_device = None
    if device is not None:
        cores = device.number(_Device.CORES, "I") or None
        abstract_device = AbstractDevice(device.text(_Device.KIND) or "", cores, device.text(_Device.PLATFORM) or "")
    try:
        axis_types = [_AXIS_TYPES.get(type, AxisType.Auto) for type in types]
        return AbstractMesh(sizes, table.texts(_Mesh.NAMES), axis_types, abstract_device=abstract_device)
    except ValueError as error:
        raise table.error(f"a mesh is not valid: {error}") from None


def _read_sharding(table: TableReader, meshes: Sequence[AbstractMesh]) -> NamedSharding:
    mesh, spec = _item(table, meshes, table.number(_Sharding.MESH, "I")), table.table(_Sharding.SPEC)
    if spec is None:
        raise table.error("a sharding has no spec")
    memory = table.text(_Sharding.MEMORY)
    try:
        dims = [tuple(dim.texts(_AXES)) or None for dim in spec.tables(_Spec.DIMS)]
        unreduced, reduced = spec.texts(_Spec.UNREDUCED), spec.texts(_Spec.REDUCED)
        named = PartitionSpec(*dims, unreduced=unreduced, reduced=reduced)
        return NamedSharding(mesh, named, memory_kind=None if memory == "device" else memory)
    except ValueError as error:
        raise table.error(f"a sharding is not valid: {error}") from None


def _read_check(table: TableReader) -> DisabledSafetyCheck:
    kind = table.number(_Check.KIND, "b")
    if kind == _PLATFORM_CHECK:
        return DisabledSafetyCheck.platform()
    if kind == _CUSTOM_CALL_CHECK:
        return DisabledSafetyCheck.custom_call(table.text(_Check.TARGET) or "")
    raise table.error(f"{kind} is no kind of safety check")
