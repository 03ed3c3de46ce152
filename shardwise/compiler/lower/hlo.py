"""The builder that ops' `lower` rules write StableHLO with: one line an op, each with the user's source line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, short_name
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective, CollectivePermute
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.ops.shape.movement import i64_array_attribute
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.mesh import AbstractMesh

_ELEMENTS = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>"}
_TOKEN = "!stablehlo.token"


@final
@dataclass(frozen=True)
class HloValue:
    """A name in the text, and its type."""

    name: str
    type: ArrayType


@final
@dataclass(frozen=True)
class HostCallback:
    """A function of the host that a module calls, by its number. Ordered ones are handed a token, and return it."""

    function: Callable[..., Any]
    results: tuple[ArrayType, ...]
    ordered: bool


class Builder:
    """Lines of one function's body."""

    def __init__(self, mesh: AbstractMesh, platform: str = "cpu"):
        self.mesh = mesh
        self.platform = platform
        self.lines: list[str] = []
        self.location = ""
        self._count = 0
        # Tables of devices stand before the module, once for all collectives that use them: on 4,096 devices one is
        # 20 kB of text.
        self.heads: list[str] = []
        self._tables: dict[tuple[Any, ...], str] = {}
        self._indices: dict[tuple[str, ...], HloValue] = {}
        self.callbacks: list[HostCallback] = []
        self._token = ""

    def at(self, source: Source, kind: str) -> None:
        """What follows comes from this line. A profile shows the last part of the name: it ends with the op's kind."""
        name = _escaped("/".join([*source.scope, *([source.place] if source.file else []), kind]))
        where = f'("{_escaped(source.file)}":{source.line}:0)' if source.file else ""
        self.location = f' loc("{name}"{where})'

    def op(
        self,
        name: str,
        operands: Sequence[HloValue],
        out: ArrayType,
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> HloValue:
        """One op with one result, in MLIR's generic form."""
        result = f"%{self._count}"
        self._count += 1
        inside = f" <{{{attributes}}}>" if attributes else ""
        region = f" ({', '.join(regions)})" if regions else ""
        names = ", ".join([x.name for x in operands])
        types = ", ".join([tensor_type(x.type) for x in operands])
        self.lines.append(
            f'{result} = "{name}"({names}){inside}{region} : ({types}) -> {tensor_type(out)}{self.location}'
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
        notes: str = "",
    ) -> list[HloValue]:
        """One op with any number of results. A token, which orders effects, comes before all else. `notes` are
        attributes that are not the op's own."""
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
        beside = f" {{{notes}}}" if notes else ""
        head = f"{result}:{len(outs)} = " if outs else ""
        ends = f"({', '.join(types)}) -> ({', '.join(outs)})"
        self.lines.append(f'{head}"{name}"({", ".join(names)}){inside}{region}{beside} : {ends}{self.location}')
        found = [f"{result}#{number}" for number in range(len(outs))]
        if gives_token:
            self._token = found.pop(0)
        return [HloValue(name, type) for name, type in zip(found, out, strict=True)]

    def loop(
        self,
        start: Sequence[HloValue],
        goes_on: Callable[[Sequence[HloValue]], HloValue],
        step: Callable[[Sequence[HloValue]], Sequence[HloValue]],
        ordered: bool = False,
    ) -> list[HloValue]:
        """Values that `step` replaces as long as `goes_on` says so. `ordered`: there are ordered effects in `step`."""
        types = [x.type for x in start]
        if ordered:
            self._last_token()
        head = self._region(types, lambda at: [goes_on(at)], takes_token=ordered)
        body = self._region(types, step, takes_token=ordered, gives_token=ordered)
        return self.many("stablehlo.while", start, types, "", [head, body], ordered, ordered)

    def branch(
        self, index: HloValue, branches: Sequence[Callable[[], Sequence[HloValue]]], ordered: bool = False
    ) -> list[HloValue]:
        """What branch number `index` gives. `ordered`: there are ordered effects in a branch."""
        types: list[ArrayType] = []
        if ordered:
            self._last_token()

        def noted(branch: Callable[[], Sequence[HloValue]]) -> list[HloValue]:
            found = list(branch())
            types[:] = [x.type for x in found]
            return found

        regions = [
            self._region([], lambda _, branch=branch: noted(branch), gives_token=ordered)  # type: ignore[misc]
            for branch in branches
        ]
        return self.many("stablehlo.case", (index,), types, "", regions, gives_token=ordered)

    def callback(
        self, function: Callable[..., Any], operands: Sequence[HloValue], results: Sequence[ArrayType], effect: str
    ) -> list[HloValue]:
        """What a function of the host returns."""
        ordered = effect == "ordered"
        index = len(self.callbacks)
        self.callbacks.append(HostCallback(function, tuple(results), ordered))
        # Every array in row-major order, in and out: else what the function sees is XLA's to choose.
        layouts = [
            ", ".join([*["dense<> : tensor<0xindex>"] * ordered, *(_row_major(type.ndim) for type in types)])
            for types in ([x.type for x in operands], results)
        ]
        attributes = (
            f'call_target_name = "xla_ffi_python_{self.platform}_callback", '
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
    ) -> list[HloValue]:
        """What a function of a library makes of arrays. A layout has the dims from minor to major: every array has
        one, else what the function sees is XLA's to choose. `written`: pairs of a result and the operand in whose
        memory it is made."""
        places = [
            "#stablehlo.output_operand_alias<"
            f"output_tuple_indices = {[result] if len(results) > 1 else []}, "
            f"operand_index = {operand}, operand_tuple_indices = []>"
            for result, operand in written
        ]
        layouts = [", ".join(map(_layout, of)) for of in (operand_layouts, result_layouts)]
        config = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        text = (
            f'call_target_name = "{target}", api_version = 4 : i32, backend_config = {{{config}}}, '
            f"operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}], "
            f"output_operand_aliases = [{', '.join(places)}]"
        )
        return self.many("stablehlo.custom_call", operands, results, text)

    def in_memory(self, x: HloValue, kind: str) -> HloValue:
        """The value, and to XLA a word about the memory of the device in which it is to be."""
        what = 'call_target_name = "annotate_device_placement", has_side_effect = true'
        where = f'mhlo.frontend_attributes = {{_xla_buffer_placement = "{kind}"}}'
        return self.many("stablehlo.custom_call", (x,), (x.type,), what, notes=where)[0]

    def reduce(
        self,
        operands: Sequence[HloValue],
        starts: Sequence[HloValue],
        dims: Sequence[int],
        combine: Callable[[Sequence[HloValue], Sequence[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]:
        """Several arrays of one shape reduced together along `dims`: `combine` takes two elements of each."""
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
        """Several arrays of one shape; each element is combined with up to `window` - 1 before it along `dim`."""
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
        """Several arrays of one shape sorted together along `dim`; elements that are equal stay in order."""
        pairs = [ArrayType((), x.type.dtype) for x in operands for _ in range(2)]
        region = self._region(pairs, lambda at: [comes_first(at[::2], at[1::2])])
        attributes = f"dimension = {dim} : i64, is_stable = true"
        return self.many("stablehlo.sort", operands, [x.type for x in operands], attributes, [region])

    def _last_token(self) -> str:
        """The token of the last ordered effect."""
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
        """A block with arguments of these types. It sees the values around it; nobody outside sees its own."""
        outside, location, indices, token = self.lines, self.location, dict(self._indices), self._token
        self.lines = []
        arguments = [HloValue(f"%at{self._count}_{number}", type) for number, type in enumerate(types)]
        heads = [f"{x.name}: {tensor_type(x.type)}" for x in arguments]
        if takes_token:
            self._token = f"%at{self._count}"
            heads.insert(0, f"{self._token}: {_TOKEN}")
        self._count += 1
        results = body(arguments)
        names, kinds = [x.name for x in results], [tensor_type(x.type) for x in results]
        if gives_token:
            names, kinds = [self._last_token(), *names], [_TOKEN, *kinds]
        self.lines.append(f'"stablehlo.return"({", ".join(names)}) : ({", ".join(kinds)}) -> (){location}')
        block = "\n    ".join(self.lines)
        self.lines, self.location, self._indices, self._token = outside, location, indices, token
        return f"{{\n    ^bb0({', '.join(heads)}):\n    {block}\n    }}" if heads else f"{{\n    {block}\n    }}"

    def program(self, program: Program, operands: Sequence[HloValue]) -> list[HloValue]:
        """The results of a program, by the `lower` rules of its ops."""
        env: dict[Value, HloValue] = dict(zip(program.inputs, operands, strict=True))
        for run in _runs(program):
            if isinstance(run[0].op, Barrier):
                self.at(run[0].source, "barrier")
                waiting = [env[equation.inputs[0]] for equation in run]
                passed = self.many("stablehlo.optimization_barrier", waiting, [x.type for x in waiting])
                env.update(zip((equation.outputs[0] for equation in run), passed, strict=True))
            else:
                self._equation(run[0], env)
        return [env[value] for value in program.outputs]

    def _equation(self, equation: Equation, env: dict[Value, HloValue]) -> None:
        self.at(equation.source, equation.op.name)
        results: Any
        if isinstance(equation.op, Collective) and equation.op.single and not equation.outputs[0].type.size:
            results = self.constant(0, equation.outputs[0].type)  # StableHLO refuses to move empty arrays
        elif _is_narrow(equation):
            # XLA's collectives do not know integers of two bits, and its CPU crashes when it joins them: as bytes.
            wide = [self._converted(env[value], np.int8) for value in equation.inputs]
            results = self._converted(equation.op.lower(self, *wide), equation.outputs[0].type.dtype)
        else:
            results = equation.op.lower(self, *[env[value] for value in equation.inputs])
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    def _converted(self, x: HloValue, dtype: Any) -> HloValue:
        return self.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))

    def constant(self, value: Any, type: ArrayType) -> HloValue:
        """An array of one value."""
        return self.op(
            "stablehlo.constant", (), type, f"value = dense<{literal(value, type.dtype)}> : {tensor_type(type)}"
        )

    def reducer(self, reduction: Reduction | None, dtype: DType) -> str:
        """Return the region that combines two scalars; without a reduction, the region that returns the second."""
        scalar = tensor_type(ArrayType((), dtype))
        if reduction is None:
            return f"{{ ^bb0(%a: {scalar}, %b: {scalar}): stablehlo.return %b : {scalar} }}"
        name = reduction.boolean_hlo_op if dtype == np.bool_ else reduction.hlo_op
        return (
            f"{{ ^bb0(%a: {scalar}, %b: {scalar}): %r = stablehlo.{name} %a, %b : {scalar} "
            f"stablehlo.return %r : {scalar} }}"
        )

    def groups(self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None) -> str:
        """The devices that take part in a collective along `axes`, group by group; `parts` of each for themselves."""
        return self._table(("groups", axes, parts), lambda: self.mesh.groups(axes, parts))

    def pairs(self, passing: CollectivePermute) -> str:
        """Source and target of every message."""
        return self._table(("pairs", passing), lambda: passing.pairs(self.mesh))

    def _table(self, key: tuple[Any, ...], made: Callable[[], NumpyArray]) -> str:
        """The name of a table of devices."""
        if key not in self._tables:
            table = made()
            name = f"#devices{len(self._tables)}"
            self._tables[key] = name
            self.heads.append(f"{name} = dense<{table.tolist()}> : tensor<{table.shape[0]}x{table.shape[1]}xi64>")
        return self._tables[key]

    def device_index(self, axes: tuple[str, ...]) -> HloValue:
        """This device's position along `axes`, as i32; worked out once for each tuple of axes."""
        if not axes:
            return self.constant(0, ArrayType((), np.int32))
        if axes not in self._indices:
            # Worked out without signs, which would be looked at in every kernel that takes it in.
            scalar = ArrayType((), np.uint32)
            if () not in self._indices:  # the device's number
                self._indices[()] = self.op("stablehlo.replica_id", (), scalar)
            position = None
            for run in self._neighbours(axes):
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

    def _neighbours(self, axes: tuple[str, ...]) -> list[list[str]]:
        """The axes, those together that follow each other in the mesh: a device's number counts them as one."""
        place = self.mesh.axis_names.index
        runs: list[list[str]] = []
        for axis in axes:
            if runs and place(axis) == place(runs[-1][-1]) + 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        return runs


def _runs(program: Program) -> Iterator[list[Equation]]:
    """Equations one by one, but neighbouring barriers together: what follows one then waits for all of them."""
    barriers: list[Equation] = []
    for equation in program.equations:
        joins = isinstance(equation.op, Barrier) and all(equation.inputs[0] not in b.outputs for b in barriers)
        if barriers and not joins:
            yield barriers
            barriers = []
        if isinstance(equation.op, Barrier):
            barriers.append(equation)
        else:
            yield [equation]
    if barriers:
        yield barriers


def _is_narrow(equation: Equation) -> bool:
    """Whether two-bit integers are to be moved."""
    moves = equation.op.single and isinstance(equation.op, (Collective, Concatenate))
    return moves and bool(equation.inputs) and short_name(equation.inputs[0].type.dtype) in ("i2", "u2")


def tensor_type(type: ArrayType) -> str:
    """The MLIR spelling of a type."""
    return f"tensor<{''.join([f'{size}x' for size in type.shape])}{_element(type.dtype)}>"


def _row_major(ndim: int) -> str:
    return _layout(tuple(reversed(range(ndim))))


def _layout(dims: Sequence[int]) -> str:
    """Dims from minor to major."""
    return f"dense<{list(dims) or ''}> : tensor<{len(dims)}xindex>"


def _element(dtype: DType) -> str:
    name = short_name(dtype)
    if "_" in name:  # f8_e4m3fn is f8E4M3FN
        width, parts = name.split("_")
        return width + parts.upper()
    return _ELEMENTS.get(name) or (f"ui{name[1:]}" if name[0] == "u" else name)


def literal(value: Any, dtype: DType) -> str:
    """One element; floats by their bits, so that nothing is rounded."""
    element = np.asarray(value).astype(dtype)
    if dtype == np.bool_:
        return "true" if element else "false"
    if dtype.kind == "c":
        half = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        return f"({literal(element.real, half)}, {literal(element.imag, half)})"
    if is_float(dtype):
        return f"0x{element.tobytes()[::-1].hex().upper()}"
    return str(int(element))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
