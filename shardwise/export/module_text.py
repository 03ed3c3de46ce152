"""The StableHLO module of an exported function, in the calling convention of `jax.export`.

`main` takes the arguments that the program uses, after the index of the platform if there are several. Arrays that the
function closes over are constants in it. Shardings are attributes of Shardy. A partitioned program is the body of a
manual computation, whose arguments are the shards of one device:

    func.func public @main(%arg0: tensor<8xf32> {sdy.sharding = ...}) -> (tensor<8xf32> {sdy.sharding = ...}) {
      %results = sdy.manual_computation(%arg0) ... (%arg1: tensor<2xf32>) { ... }
      return %results
    }
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import SMALL_INTEGERS, DType
from shardwise.compiler.ir.op import HloValue
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import Builder, literal, tensor_type
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.errors import ShardingError, UnsupportedError
from shardwise.execute.executor import LoweredRequest
from shardwise.random import key_data

PLATFORM_ARGUMENT = 'tensor<i32> {jax.global_constant = "_platform_index"}'


@final
@dataclass(frozen=True)
class Value:
    """An argument or a result of `main`: its type in the module, and the sharding to annotate, or None."""

    type: ArrayType
    sharding: NamedSharding | None

    def attributes(self, meshes: "Meshes") -> str:
        if self.sharding is None:
            return ""
        return f" {{sdy.sharding = #sdy.sharding{meshes.text(self.sharding, self.type.shape)}}}"


@final
class Meshes:
    """The meshes of a module, by name."""

    def __init__(self) -> None:
        self._names: dict[AbstractMesh, str] = {}

    def text(self, sharding: NamedSharding, shape: tuple[int, ...]) -> str:
        """Return a sharding of Shardy, such as `<@mesh, [{"x"}, {}]>`."""
        return self.pin_text(sharding.mesh.abstract, sharding.pin(shape))

    def pin_text(self, mesh: AbstractMesh, pin: Pin) -> str:
        name = self._names.setdefault(mesh, "mesh" if not self._names else f"mesh_{len(self._names)}")
        dims = [
            ", ".join([*(f'"{axis}"' for axis in axes), *(["?"] if dim in pin.open_dims else [])])
            for dim, axes in enumerate(pin.layout.dims)
        ]
        return f"<@{name}, [{', '.join(f'{{{dim}}}' for dim in dims)}]>"

    def definitions(self) -> Iterator[str]:
        for mesh, name in self._names.items():
            axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh.shape.items())
            yield f"sdy.mesh @{name} = <[{axes}]>"


def unpartitioned_module(
    name: str, lowered: Mapping[str, LoweredRequest], arguments: Sequence[Value], results: Sequence[Value], devices: int
) -> str:
    """Return the module of a program that was lowered for one device.

    Args:
        name: the name of the function.
        lowered: the program for each platform.
        arguments: the arguments of `main`, without the index of the platform.
        results: the results of `main`.
        devices: the number of devices of the shardings.
    """
    meshes = Meshes()
    heads = [f"{tensor_type(value.type)}{value.attributes(meshes)}" for value in arguments]
    outs = [f"{tensor_type(value.type)}{value.attributes(meshes)}" for value in results]
    bodies = {platform: _body(request, platform) for platform, request in lowered.items()}
    if len(bodies) == 1:
        (body,) = bodies.values()
        return _module(name, devices, meshes, [_function("public", "main", heads, outs, body)])
    types = [tensor_type(value.type) for value in arguments]
    out_types = ", ".join(tensor_type(value.type) for value in results)
    functions = [
        _function("private", f"main_{platform}", types, [tensor_type(value.type) for value in results], body)
        for platform, body in bodies.items()
    ]
    operands = ", ".join(f"%arg{index + 1}" for index in range(len(arguments)))
    branches = ", ".join(
        f"{{ %r{_count(results)} = func.call @main_{platform}({operands}) : ({', '.join(types)}) -> ({out_types}) "
        f"stablehlo.return {_uses(results)} : {out_types} }}"
        for platform in bodies
    )
    choice = f'%r{_count(results)} = "stablehlo.case"(%arg0) ({branches}) : (tensor<i32>) -> ({out_types})'
    main = _function(
        "public", "main", [PLATFORM_ARGUMENT, *heads], outs, [choice, f"return {_uses(results)} : {out_types}"]
    )
    return _module(name, devices, meshes, [main, *functions], is_polymorphic=True)


def partitioned_module(
    name: str, lowered: LoweredRequest, platform: str, arguments: Sequence[Value], results: Sequence[Value]
) -> str:
    """Return the module of a program that was partitioned for a mesh, with its collectives.

    Raises:
        ShardingError: if the shards of an argument or result differ in size.
    """
    local, meshes = lowered.stages.local, Meshes()
    mesh = local.mesh
    for placement in (*local.inputs, *local.outputs):
        if placement.layout.padded_shape(placement.type.shape, mesh) != placement.type.shape:
            raise ShardingError(
                f"export: {placement.type} is sharded unevenly as {placement.layout} on the mesh {mesh}, which a "
                "partitioned module cannot express. Pad it, or export without partitioned=True."
            )
    ins, outs = (
        ", ".join(meshes.pin_text(mesh, Pin(placement.layout)) for placement in placements)
        for placements in (local.inputs, local.outputs)
    )
    heads = [f"{tensor_type(value.type)}{value.attributes(meshes)}" for value in arguments]
    out_heads = [f"{tensor_type(value.type)}{value.attributes(meshes)}" for value in results]
    builder = Builder(mesh, platform, as_partitions=True)
    shards = [HloValue(f"%shard{index}", type) for index, type in enumerate(local.program.in_types)]
    local_results = builder.program(local.program, shards)
    _check_callbacks(name, builder)
    constants = [_constant(f"%constant{index}", x) for index, x in enumerate(lowered.constants)]
    operands = [
        *(f"%arg{index}" for index in range(len(arguments))),
        *(f"%constant{index}" for index in range(len(constants))),
    ]
    in_types = ", ".join(tensor_type(placement.type) for placement in local.inputs)
    out_types = ", ".join(tensor_type(value.type) for value in results)
    manual_axes = ", ".join(f'"{axis}"' for axis in mesh.axis_names)
    shard_heads = ", ".join(f"{shard.name}: {tensor_type(shard.type)}" for shard in shards)
    inner = "\n      ".join(builder.lines)
    returned = ", ".join(x.name for x in local_results)
    returned_types = ", ".join(tensor_type(x.type) for x in local_results)
    body = [
        *constants,
        f"%r{_count(results)} = sdy.manual_computation({', '.join(operands)}) in_shardings=[{ins}] "
        f"out_shardings=[{outs}] manual_axes={{{manual_axes}}} ({shard_heads}) {{\n      {inner}\n      "
        f"sdy.return {returned} : {returned_types}\n    }} : ({in_types}) -> ({out_types})",
        f"return {_uses(results)} : {out_types}",
    ]
    functions = [_function("public", "main", heads, out_heads, body)]
    return _module(name, mesh.device_count, meshes, functions, builder.heads)


def _body(lowered: LoweredRequest, platform: str) -> list[str]:
    """Return the ops of the program of one device, in MLIR syntax."""
    program, constants = lowered.stages.local.program, lowered.constants
    builder = Builder(lowered.stages.local.mesh, platform)
    first = len(program.inputs) - len(constants)
    # The index of the platform, if there is one, is an argument of `main` only.
    operands = [HloValue(f"%arg{index}", type) for index, type in enumerate(program.in_types)]
    results = builder.program(program, operands)
    _check_callbacks(program.name, builder)
    types = ", ".join(tensor_type(x.type) for x in results)
    returned = f"return {', '.join(x.name for x in results)}{' : ' if types else ''}{types}"
    return [*(_constant(f"%arg{first + index}", x) for index, x in enumerate(constants)), *builder.lines, returned]


def _check_callbacks(name: str, builder: Builder) -> None:
    if builder.callbacks:
        function = getattr(builder.callbacks[0].function, "__name__", "a function")
        raise UnsupportedError(
            f"export: `{name}` calls Python functions on the host, such as `{function}`, which a file cannot hold. "
            "Remove callbacks and `debug.print` from the exported function."
        )


def _constant(name: str, array: Any) -> str:
    """Return the definition of a constant; keys are words."""
    words = np.asarray(key_data(array) if array.type.dtype.kind == "key" else array)
    type = ArrayType(words.shape, words.dtype)
    return f"{name} = stablehlo.constant dense<{_elements(words, type.dtype)}> : {tensor_type(type)}"


def _elements(array: np.ndarray[Any, Any], dtype: DType) -> str:
    """Return all elements of an array in MLIR syntax: as bytes if each element has whole ones, else one by one."""
    if not array.size:
        return ""
    if dtype != np.bool_ and dtype not in SMALL_INTEGERS.values() and "float4" not in dtype.name:
        return f'"0x{np.ascontiguousarray(array).tobytes().hex().upper()}"'
    if array.ndim == 0:
        return literal(array[()], dtype)
    return f"[{', '.join(_elements(row, dtype) for row in array)}]"


def _function(visibility: str, name: str, arguments: Sequence[str], results: Sequence[str], body: Sequence[str]) -> str:
    heads = ", ".join(f"%arg{index}: {argument}" for index, argument in enumerate(arguments))
    lines = "\n    ".join(body)
    return f"func.func {visibility} @{name}({heads}) -> ({', '.join(results)}) {{\n    {lines}\n  }}"


def _module(
    name: str,
    devices: int,
    meshes: Meshes,
    functions: Sequence[str],
    heads: Sequence[str] = (),
    is_polymorphic: bool = False,
) -> str:
    symbol = re.sub(r"\W", "_", name) or "main"
    attributes = (
        f"jax.uses_shape_polymorphism = {'true' if is_polymorphic else 'false'}, "
        f"mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32"
    )
    parts = "\n  ".join([*meshes.definitions(), *functions])
    return (
        "".join(f"{head}\n" for head in heads) + f"module @jit_{symbol} attributes {{{attributes}}} {{\n  {parts}\n}}\n"
    )


def _count(results: Sequence[Any]) -> str:
    return f":{len(results)}" if len(results) > 1 else ""


def _uses(results: Sequence[Any]) -> str:
    return ", ".join(f"%r#{index}" for index in range(len(results))) if len(results) > 1 else "%r"
