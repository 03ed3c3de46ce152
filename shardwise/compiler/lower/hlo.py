"""The StableHLO builder that the `lower` rules of ops use: one line of MLIR per op, with the user's source line."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, DTypeLike, is_float, short_name
from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.mlir_string import attribute_name, mlir_string
from shardwise.compiler.ir.op import HloValue, NumpyArray
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType, ScalarLike
from shardwise.compiler.ops.collective.collectives import Collective, CollectivePermute
from shardwise.compiler.ops.shape.movement import i64_array_attribute
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import UnsupportedError

_ELEMENTS = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>"}
_TOKEN = "!stablehlo.token"
# The call target of Python callbacks, by platform. XLA has no such target for others.
CALLBACK_TARGETS = {
    platform: f"xla_ffi_python_{name}_callback" for platform, name in (("cpu", "cpu"), ("cuda", "gpu"), ("rocm", "gpu"))
}


@final
@dataclass(frozen=True)
class HostCallback:
    """A Python function that a module calls on the host. An ordered callback also receives and returns a token."""

    function: Callable[..., Any]
    results: tuple[ArrayType, ...]
    ordered: bool


class Builder:
    """A builder of the body of one function.

    Attributes:
        lines: the ops so far, in MLIR syntax.
        heads: the attribute aliases at the top of the module.
        callbacks: the host callbacks of the module, by index.
        in_loop: whether the ops are in the body of a while loop.

    Devices are replicas, or, with `as_partitions`, partitions of one program.
    """

    def __init__(self, mesh: AbstractMesh, platform: str = "cpu", as_partitions: bool = False):
        self.mesh = mesh
        self.platform = platform
        self._as_partitions = as_partitions
        self._source, self._op_name = Source("", 0, ""), ""
        self.lines: list[str] = []
        self.location = ""
        self._metadata = ""
        self._count = 0
        # Collectives over the same devices share their device table as one attribute alias: for 4,096 devices it has 20
        # kB.
        self.heads: list[str] = []
        self._tables: dict[tuple[Any, ...], str] = {}
        self._indices: dict[tuple[str, ...], HloValue] = {}
        self.callbacks: list[HostCallback] = []
        self.options: dict[str, bool] = {}
        self._token = ""
        self.in_loop = False

    def at(self, source: Source, op_name: str) -> None:
        """Set the location of the ops that follow. It ends with the op, because profilers show its last part."""
        name = _escape("/".join([*source.scope, *([source.place] if source.file else []), op_name]))
        where = f'("{_escape(source.file)}":{source.line}:0)' if source.file else ""
        self.location = f' loc("{name}"{where})'
        self._metadata = source.metadata
        self._source, self._op_name = source, op_name

    @property
    def place(self) -> str:
        """The user's line of the op that is being lowered; empty if it is unknown."""
        return self._source.place if self._source.file else ""

    def compile_option(self, name: str, value: bool) -> None:
        """Compile the module with an option of XLA, unless the user chooses another value."""
        self.options[name] = value

    def unsupported(self, reason: str) -> UnsupportedError:
        """Return the error for an op that cannot be lowered for the platform."""
        place = f" at {self.place}" if self.place else ""
        return UnsupportedError(
            f"{self._op_name}{place} has no lowering for the platform {self.platform!r}: {reason}. Move the operands "
            "to a CPU with `device_put(x, devices('cpu')[0])` and compute there."
        )

    def _frontend_attributes(self, name: str, own: Mapping[str, str] | None = None) -> str:
        """Return the attributes of an op that XLA keeps in HLO, as text: its own, and those of the source line."""
        if not own and (not self._metadata or name == "stablehlo.constant"):  # XLA merges equal constants
            return ""
        attributes = {**(json.loads(self._metadata) if self._metadata else {}), **(own or {})}
        entries = ", ".join(f'"{_escape(key)}" = "{_escape(value)}"' for key, value in attributes.items())
        return f" {{mhlo.frontend_attributes = {{{entries}}}}}"

    def op(
        self,
        name: str,
        operands: Sequence[HloValue],
        out: ArrayType,
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> HloValue:
        """Append an op with one result, in MLIR's generic form."""
        result = f"%{self._count}"
        self._count += 1
        inside = f" <{{{attributes}}}>" if attributes else ""
        region = f" ({', '.join(regions)})" if regions else ""
        names = ", ".join([x.name for x in operands])
        types = ", ".join([tensor_type(x.type) for x in operands])
        self.lines.append(
            f'{result} = "{name}"({names}){inside}{region}{self._frontend_attributes(name)}'
            f" : ({types}) -> {tensor_type(out)}{self.location}"
        )
        return HloValue(result, out)

    def many(
        self,
        name: str,
        operands: Sequence[HloValue],
        out: Sequence[ArrayType],
        attributes: str = "",
        regions: Sequence[str] = (),
        takes_token: bool = False,
        gives_token: bool = False,
        frontend_attributes: Mapping[str, str] | None = None,
    ) -> list[HloValue]:
        """Append an op with any number of results.

        Args:
            name: the name of the op.
            operands: the operands.
            out: the types of the results.
            attributes: the attributes of the op, in MLIR syntax.
            regions: the regions of the op, in MLIR syntax.
            takes_token: whether the first operand is the token that orders effects.
            gives_token: whether the first result is the next token.
            frontend_attributes: attributes that XLA keeps in HLO.
        """
        names, types = [x.name for x in operands], [tensor_type(x.type) for x in operands]
        outs = [tensor_type(type) for type in out]
        if takes_token:
            names, types = [self._last_token(), *names], [_TOKEN, *types]
        if gives_token:
            outs = [_TOKEN, *outs]
        result = f"%{self._count}"
        self._count += 1
        inside = f" <{{{attributes}}}>" if attributes else ""
        region = f" ({', '.join(regions)})" if regions else ""
        discardable = self._frontend_attributes(name, frontend_attributes)
        head = f"{result}:{len(outs)} = " if outs else ""
        signature = f"({', '.join(types)}) -> ({', '.join(outs)})"
        self.lines.append(
            f'{head}"{name}"({", ".join(names)}){inside}{region}{discardable} : {signature}{self.location}'
        )
        results = [f"{result}#{index}" for index in range(len(outs))]
        if gives_token:
            self._token = results.pop(0)
        return [HloValue(name, type) for name, type in zip(results, out, strict=True)]

    def loop(
        self,
        start: Sequence[HloValue],
        condition: Callable[[Sequence[HloValue]], HloValue],
        step: Callable[[Sequence[HloValue]], Sequence[HloValue]],
        ordered: bool = False,
    ) -> list[HloValue]:
        """Append a while loop that applies `step` to the carried values as long as `condition` holds.

        `ordered` is whether `step` has ordered effects.
        """
        types = [x.type for x in start]
        if ordered:
            self._last_token()
        head = self._region(types, lambda at: [condition(at)], takes_token=ordered)
        was_in_loop, self.in_loop = self.in_loop, True
        body = self._region(types, step, takes_token=ordered, gives_token=ordered)
        self.in_loop = was_in_loop
        return self.many("stablehlo.while", start, types, "", [head, body], ordered, ordered)

    def branch(
        self, index: HloValue, branches: Sequence[Callable[[], Sequence[HloValue]]], ordered: bool = False
    ) -> list[HloValue]:
        """Append a case op that returns the results of branch `index`. `ordered`: a branch has ordered effects."""
        types: list[ArrayType] = []
        if ordered:
            self._last_token()

        def body(branch: Callable[[], Sequence[HloValue]]) -> list[HloValue]:
            results = list(branch())
            types[:] = [x.type for x in results]
            return results

        regions = [
            self._region([], lambda _, branch=branch: body(branch), gives_token=ordered)  # type: ignore[misc]
            for branch in branches
        ]
        return self.many("stablehlo.case", (index,), types, "", regions, gives_token=ordered)

    def callback(
        self, function: Callable[..., Any], operands: Sequence[HloValue], results: Sequence[ArrayType], effect: str
    ) -> list[HloValue]:
        """Append a call of a Python function on the host.

        Args:
            function: the function.
            operands: its operands.
            results: the types of its results.
            effect: "ordered", "unordered", or empty if it has no side effect.
        """
        if self.platform not in CALLBACK_TARGETS:
            raise self.unsupported("XLA calls Python functions on CPUs and GPUs only")
        ordered = effect == "ordered"
        index = len(self.callbacks)
        self.callbacks.append(HostCallback(function, tuple(results), ordered))
        # All arrays are row-major. Without an explicit layout, XLA would choose one.
        layouts = [
            ", ".join([*["dense<> : tensor<0xindex>"] * ordered, *(_row_major(type.ndim) for type in types)])
            for types in ([x.type for x in operands], results)
        ]
        attributes = (
            f'call_target_name = "{CALLBACK_TARGETS[self.platform]}", '
            f"has_side_effect = {'true' if effect else 'false'}, "
            f"api_version = 4 : i32, backend_config = {{index = {index} : ui64}}, "
            f"operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}]"
        )
        return self.many("stablehlo.custom_call", operands, results, attributes, (), ordered, ordered)

    def custom_call(
        self,
        target: str,
        operands: Sequence[HloValue],
        results: Sequence[ArrayType],
        attributes: Mapping[str, str],
        operand_layouts: Sequence[Sequence[int]],
        result_layouts: Sequence[Sequence[int]],
        written: Sequence[tuple[int, int]] = (),
        has_side_effect: bool = False,
    ) -> list[HloValue]:
        """Append a call of a registered FFI target.

        Args:
            target: the name of the target.
            operands: the operands.
            results: the types of the results.
            attributes: the attributes of the call, in MLIR syntax.
            operand_layouts: the layout of each operand, as its dims from minor to major.
            result_layouts: the layout of each result, likewise.
            written: pairs (result index, index of the operand whose buffer the result reuses).
            has_side_effect: whether XLA must keep the call even if nothing uses its results.
        """
        aliases = [
            "#stablehlo.output_operand_alias<"
            f"output_tuple_indices = {[result] if len(results) > 1 else []}, "
            f"operand_index = {operand}, operand_tuple_indices = []>"
            for result, operand in written
        ]
        layouts = [", ".join(map(_layout, of)) for of in (operand_layouts, result_layouts)]
        config = ", ".join(f"{attribute_name(name)} = {value}" for name, value in attributes.items())
        text = (
            f"call_target_name = {mlir_string(target)}, api_version = 4 : i32, backend_config = {{{config}}}, "
            f"operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}], "
            f"output_operand_aliases = [{', '.join(aliases)}]{', has_side_effect = true' if has_side_effect else ''}"
        )
        return self.many("stablehlo.custom_call", operands, results, text)

    def in_memory(self, x: HloValue, kind: str) -> HloValue:
        """Return the value, annotated with the memory kind in which XLA should place it."""
        attributes = 'call_target_name = "annotate_device_placement", has_side_effect = true'
        placement = {"_xla_buffer_placement": kind}
        return self.many("stablehlo.custom_call", (x,), (x.type,), attributes, frontend_attributes=placement)[0]

    def reduce(
        self,
        operands: Sequence[HloValue],
        starts: Sequence[HloValue],
        dims: Sequence[int],
        combine: Callable[[Sequence[HloValue], Sequence[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]:
        """Append a variadic reduction of arrays of one shape along `dims`. `combine` reduces two elements of each."""
        scalars = [ArrayType((), x.type.dtype) for x in operands]
        count = len(operands)
        region = self._region([*scalars, *scalars], lambda at: combine(at[:count], at[count:]))
        attributes = f"dimensions = {i64_array_attribute(dims)}"
        out = [x.type.without(tuple(dims)) for x in operands]
        return self.many("stablehlo.reduce", [*operands, *starts], out, attributes, [region])

    def reduce_window(
        self,
        operands: Sequence[HloValue],
        starts: Sequence[HloValue],
        dim: int,
        window: int,
        combine: Callable[[Sequence[HloValue], Sequence[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]:
        """Append a reduction that combines each element with up to `window - 1` elements before it along `dim`."""
        scalars = [ArrayType((), x.type.dtype) for x in operands]
        count = len(operands)
        region = self._region([*scalars, *scalars], lambda at: combine(at[:count], at[count:]))
        ndim = operands[0].type.ndim
        ones, sizes, edges = [1] * ndim, [1] * ndim, [[0, 0] for _ in range(ndim)]
        sizes[dim], edges[dim] = window, [window - 1, 0]
        attributes = (
            f"window_dimensions = {i64_array_attribute(sizes)}, window_strides = {i64_array_attribute(ones)}, "
            f"base_dilations = {i64_array_attribute(ones)}, window_dilations = {i64_array_attribute(ones)}, "
            f"padding = dense<{edges}> : tensor<{ndim}x2xi64>"
        )
        out = [x.type for x in operands]
        return self.many("stablehlo.reduce_window", [*operands, *starts], out, attributes, [region])

    def sort(
        self,
        operands: Sequence[HloValue],
        dim: int,
        comes_first: Callable[[Sequence[HloValue], Sequence[HloValue]], HloValue],
    ) -> list[HloValue]:
        """Append a stable variadic sort of arrays of one shape along `dim`. `comes_first` compares two elements."""
        pairs = [ArrayType((), x.type.dtype) for x in operands for _ in range(2)]
        region = self._region(pairs, lambda at: [comes_first(at[::2], at[1::2])])
        attributes = f"dimension = {dim} : i64, is_stable = true"
        return self.many("stablehlo.sort", operands, [x.type for x in operands], attributes, [region])

    def _last_token(self) -> str:
        """Return the token of the last ordered effect."""
        if not self._token:
            self._token = f"%{self._count}"
            self._count += 1
            self.lines.append(f'{self._token} = "stablehlo.create_token"() : () -> {_TOKEN}')
        return self._token

    def _region(
        self,
        types: Sequence[ArrayType],
        body: Callable[[Sequence[HloValue]], Sequence[HloValue]],
        takes_token: bool = False,
        gives_token: bool = False,
    ) -> str:
        """Return a region in MLIR syntax, with arguments of these types. `body` maps its arguments to its results."""
        lines, location, metadata = self.lines, self.location, self._metadata
        indices, token = dict(self._indices), self._token
        self.lines = []
        arguments = [HloValue(f"%at{self._count}_{index}", type) for index, type in enumerate(types)]
        heads = [f"{x.name}: {tensor_type(x.type)}" for x in arguments]
        if takes_token:
            self._token = f"%at{self._count}"
            heads.insert(0, f"{self._token}: {_TOKEN}")
        self._count += 1
        results = body(arguments)
        names, result_types = [x.name for x in results], [tensor_type(x.type) for x in results]
        if gives_token:
            names, result_types = [self._last_token(), *names], [_TOKEN, *result_types]
        self.lines.append(f'"stablehlo.return"({", ".join(names)}) : ({", ".join(result_types)}) -> (){location}')
        block = "\n    ".join(self.lines)
        self.lines, self.location, self._metadata = lines, location, metadata
        self._indices, self._token = indices, token
        return f"{{\n    ^bb0({', '.join(heads)}):\n    {block}\n    }}" if heads else f"{{\n    {block}\n    }}"

    def program(self, program: Program, operands: Sequence[HloValue]) -> list[HloValue]:
        """Append the ops of a program, by their `lower` rules, and return its results."""
        env: dict[Value, HloValue] = dict(zip(program.inputs, operands, strict=True))
        metadata = self._metadata
        for group in issue_groups(program):
            if group[0].op.fusion.is_barrier:
                self.at(group[0].source, "barrier")
                inputs = [env[equation.inputs[0]] for equation in group]
                results = self.many("stablehlo.optimization_barrier", inputs, [x.type for x in inputs])
                env.update(zip((equation.outputs[0] for equation in group), results, strict=True))
            elif len(group) > 1:
                self._launch(group, env)
            else:
                self._equation(group[0], env)
        self._metadata = metadata  # a loop appends ops of its own after its body
        return [env[value] for value in program.outputs]

    def _equation(self, equation: Equation, env: dict[Value, HloValue]) -> None:
        self.at(equation.source, equation.op.name)
        results: Any
        if isinstance(equation.op, Collective) and equation.op.single and not equation.outputs[0].type.size:
            results = self.constant(0, equation.outputs[0].type)  # StableHLO rejects empty collectives
        elif _is_narrow(equation):
            # XLA's collectives do not support 2-bit integers, and its CPU backend crashes on their concatenation.
            moved = equation.inputs[0].type.dtype
            operands = [env[value] for value in equation.inputs]
            wide = [self._convert(x, np.int8) if x.type.dtype == moved else x for x in operands]
            results = self._convert(equation.op.lower(self, *wide), equation.outputs[0].type.dtype)
        else:
            results = equation.op.lower(self, *[env[value] for value in equation.inputs])
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    def _launch(self, group: Sequence[Equation], env: dict[Value, HloValue]) -> None:
        """Append the collectives of one launch."""
        operands, sent = [], []
        for equation in group:
            self.at(equation.source, equation.op.name)
            x = env[equation.inputs[0]]
            operands.append(self._convert(x, np.int8) if _is_narrow(equation) else x)
            sent.append(_collective(equation).lower_operand(self, operands[-1]))
        self.at(group[0].source, group[0].op.name)
        received = _collective(group[0]).lower_launch(self, sent)
        for equation, operand, x in zip(group, operands, received, strict=True):
            self.at(equation.source, equation.op.name)
            result = _collective(equation).lower_received(self, x, operand.type)
            (value,) = equation.outputs
            env[value] = self._convert(result, value.type.dtype) if _is_narrow(equation) else result

    def _convert(self, x: HloValue, dtype: DTypeLike) -> HloValue:
        return self.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))

    def constant(self, value: ScalarLike, type: ArrayType) -> HloValue:
        """Append a constant array of one value."""
        return self.op(
            "stablehlo.constant", (), type, f"value = dense<{literal(value, type.dtype)}> : {tensor_type(type)}"
        )

    def reducer(self, reduction: Reduction | None, dtype: DType) -> str:
        """Return the region that combines two scalars; without a reduction, a region that returns the second scalar."""
        scalar = tensor_type(ArrayType((), dtype))
        if reduction is None:
            return f"{{ ^bb0(%a: {scalar}, %b: {scalar}): stablehlo.return %b : {scalar} }}"
        name = reduction.boolean_hlo_op if dtype == np.bool_ else reduction.hlo_op
        return (
            f"{{ ^bb0(%a: {scalar}, %b: {scalar}): %r = stablehlo.{name} %a, %b : {scalar} "
            f"stablehlo.return %r : {scalar} }}"
        )

    def groups(self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None) -> str:
        """Return the replica groups of a collective along `axes`. `parts` splits each group into subgroups."""
        return self._table(("groups", axes, parts), lambda: self.mesh.groups(axes, parts))

    def group_attributes(
        self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None, has_global_ids: bool = True
    ) -> str:
        """Return the attributes of a collective along `axes` that say which devices communicate.

        `has_global_ids`: whether the op has the attribute `use_global_device_ids`.
        """
        global_ids = ", use_global_device_ids" if self._as_partitions and has_global_ids else ""
        return f"replica_groups = {self.groups(axes, parts)}{self._channel_attribute()}{global_ids}"

    def pair_attributes(self, passing: CollectivePermute) -> str:
        """Return the attributes of a collective permute that say which devices communicate."""
        pairs = self._table(("pairs", passing), lambda: passing.pairs(self.mesh))
        return f"source_target_pairs = {pairs}{self._channel_attribute()}"

    @property
    def channel(self) -> int:
        """The channel of collectives: 1 if devices are partitions; else 0, which is none."""
        return int(self._as_partitions)

    def _channel_attribute(self) -> str:
        return (
            f", channel_handle = #stablehlo.channel_handle<handle = {self.channel}, type = 1>" if self.channel else ""
        )

    def _table(self, key: tuple[Any, ...], build: Callable[[], NumpyArray]) -> str:
        """Return the attribute alias of a device table, which is built once per key."""
        if key not in self._tables:
            table = build()
            name = f"#devices{len(self._tables)}"
            self._tables[key] = name
            self.heads.append(f"{name} = dense<{table.tolist()}> : tensor<{table.shape[0]}x{table.shape[1]}xi64>")
        return self._tables[key]

    def device_index(self, axes: tuple[str, ...]) -> HloValue:
        """Return this device's position along `axes`, as i32. It is computed once per tuple of axes."""
        if not axes:
            return self.constant(0, ArrayType((), np.int32))
        if axes not in self._indices:
            # Unsigned, because signed division would add checks to every kernel that it is fused into.
            scalar = ArrayType((), np.uint32)
            if () not in self._indices:  # the device index
                number = "partition_id" if self._as_partitions else "replica_id"
                self._indices[()] = self.op(f"stablehlo.{number}", (), scalar)
            position = None
            for run in self._merge_adjacent(axes):
                stride = self.mesh.extent(self.mesh.axis_names[self.mesh.axis_names.index(run[-1]) + 1 :])
                size = self.constant(self.mesh.extent(run), scalar)
                digit = self._indices[()]
                if stride > 1:
                    digit = self.op("stablehlo.divide", (digit, self.constant(stride, scalar)), scalar)
                if run[0] != self.mesh.axis_names[0]:
                    digit = self.op("stablehlo.remainder", (digit, size), scalar)
                if position is not None:
                    digit = self.op(
                        "stablehlo.add", (self.op("stablehlo.multiply", (position, size), scalar), digit), scalar
                    )
                position = digit
            assert position is not None
            self._indices[axes] = self.op("stablehlo.convert", (position,), ArrayType((), np.int32))
        return self._indices[axes]

    def _merge_adjacent(self, axes: tuple[str, ...]) -> list[list[str]]:
        """Merge axes that are adjacent in device order."""
        position = self.mesh.axis_names.index
        runs: list[list[str]] = []
        for axis in axes:
            if runs and position(axis) == position(runs[-1][-1]) + 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        return runs


def _collective(equation: Equation) -> Collective:
    assert isinstance(equation.op, Collective)
    return equation.op


def _is_narrow(equation: Equation) -> bool:
    """Return whether an equation has 2-bit integers that XLA cannot compile in this op."""
    if equation.op.lowers_narrow or not equation.op.single or not equation.inputs:
        return False
    return short_name(equation.inputs[0].type.dtype) in ("i2", "u2")


def tensor_type(type: ArrayType) -> str:
    """Return a type in MLIR syntax."""
    return f"tensor<{''.join([f'{size}x' for size in type.shape])}{element_type(type.dtype)}>"


def _row_major(ndim: int) -> str:
    return _layout(tuple(reversed(range(ndim))))


def _layout(dims: Sequence[int]) -> str:
    """Return a layout attribute, for dims from minor to major."""
    return f"dense<{list(dims) or ''}> : tensor<{len(dims)}xindex>"


def element_type(dtype: DType) -> str:
    """Return an element type in MLIR syntax."""
    name = short_name(dtype)
    if "_" in name:  # f8_e4m3fn is f8E4M3FN
        width, parts = name.split("_")
        return width + parts.upper()
    return _ELEMENTS.get(name) or (f"ui{name[1:]}" if name[0] == "u" else name)


def literal(value: ScalarLike, dtype: DType) -> str:
    """Return one element in MLIR syntax; floats as their bits, so that they are not rounded."""
    element = np.asarray(value).astype(dtype)
    if dtype == np.bool_:
        return "true" if element else "false"
    if dtype.kind == "c":
        half = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        return f"({literal(element.real, half)}, {literal(element.imag, half)})"
    if is_float(dtype):
        return f"0x{element.tobytes()[::-1].hex().upper()}"
    return str(int(element))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def without_locations(text: str) -> str:
    """Remove the source locations from a module in MLIR syntax. They do not change the program."""
    return re.sub(r" loc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\([^()]*\))*\)", "", text)
