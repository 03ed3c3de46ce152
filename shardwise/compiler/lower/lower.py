"""lower: from a local program to the StableHLO module, in MLIR syntax, that XLA compiles."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from shardwise.compiler.ir.op import HloValue
from shardwise.compiler.ir.program import Value
from shardwise.compiler.lower.hlo import Builder, HostCallback, tensor_type
from shardwise.compiler.ops.placement.memory_space import PINNED_HOST
from shardwise.compiler.partition.liveness import output_aliases, values_on_host
from shardwise.compiler.partition.local_program import LocalProgram

_HOST_MEMORY = f'mhlo.memory_kind = "{PINNED_HOST}"'


@final
@dataclass(frozen=True, eq=False)
class StableHlo:
    """A StableHLO module.

    Attributes:
        text: the module in MLIR syntax.
        devices: the number of devices that run it, each on its own shards.
        aliases: for each donated input, the output that reuses its buffer.
        callbacks: the Python functions that it calls.
        host_inputs: the inputs that must be in pinned host memory.
        host_outputs: the outputs that are in pinned host memory.
        options: compiler options of XLA that its ops and its schedule need, as pairs of a name and a value.
    """

    text: str
    devices: int
    aliases: dict[int, int]
    callbacks: tuple[HostCallback, ...] = ()
    host_inputs: frozenset[int] = frozenset()
    host_outputs: frozenset[int] = frozenset()
    options: tuple[tuple[str, bool | int], ...] = ()


def lower(
    local: LocalProgram,
    donated: Sequence[bool] = (),
    platform: str = "cpu",
    as_partitions: bool = False,
    options: Mapping[str, bool | int] = MappingProxyType({}),
) -> StableHlo:
    """Lower a local program to StableHLO.

    Args:
        local: the program of one device.
        donated: for each input, whether its buffer may be reused for an output of the same size.
        platform: the target platform.
        as_partitions: whether devices are partitions of one program, as in a module of JAX, instead of replicas.
        options: compiler options of XLA, beside those that ops need.
    """
    program = local.program
    builder = Builder(local.mesh, platform, as_partitions)
    results = builder.program(program, [HloValue(f"%arg{n}", type) for n, type in enumerate(program.in_types)])
    on_host = frozenset() if platform == "cpu" else values_on_host(program)  # the CPU platform has only one memory
    host_inputs, host_outputs = (_indices(values, on_host) for values in (program.inputs, program.outputs))
    donors = {number for number, is_donated in enumerate(donated) if is_donated}
    aliases = output_aliases(program, donors, on_host)
    attributes = {number: [_HOST_MEMORY] for number in host_inputs}
    if not as_partitions:
        for number, output in aliases.items():
            attributes.setdefault(number, []).append(f"tf.aliasing_output = {output} : i32")
    heads = ", ".join(
        f"%arg{number}: {tensor_type(value.type)}{_in_braces(attributes.get(number, []))}"
        for number, value in enumerate(program.inputs)
    )
    types = ", ".join(tensor_type(value.type) for value in program.outputs)
    result_types = ", ".join(
        f"{tensor_type(value.type)}{_in_braces([_HOST_MEMORY] * (number in host_outputs))}"
        for number, value in enumerate(program.outputs)
    )
    tables = "".join(f"{head}\n" for head in builder.heads)
    body = "\n    ".join(builder.lines)
    names = ", ".join(x.name for x in results)
    name = re.sub(r"\W", "_", program.name) or "main"
    text = (
        f"{tables}module @{name} {{\n  func.func public @main({heads}) -> ({result_types}) {{\n    {body}\n"
        f"    return{' ' if names else ''}{names}{' : ' if types else ''}{types}\n  }}\n}}\n"
    )
    return StableHlo(
        text,
        local.mesh.device_count,
        aliases,
        tuple(builder.callbacks),
        frozenset(host_inputs),
        frozenset(host_outputs),
        tuple(sorted({**options, **builder.options}.items())),
    )


def _indices(values: Sequence[Value], chosen: frozenset[Value]) -> list[int]:
    return [index for index, value in enumerate(values) if value in chosen]


def _in_braces(attributes: Sequence[str]) -> str:
    return f" {{{', '.join(attributes)}}}" if attributes else ""
