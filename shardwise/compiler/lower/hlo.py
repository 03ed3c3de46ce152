"""The builder that ops' `lower` rules write StableHLO with: one line an op, each with the user's source line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Source
from shardwise.compiler.ir.types import ArrayType, DType, is_float, short_name
from shardwise.compiler.ops.collective import Permute
from shardwise.compiler.shardings.mesh import AbstractMesh

_ELEMENTS = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>", "f8_e4m3fn": "f8E4M3FN", "f8_e5m2": "f8E5M2"}
_REDUCERS = {"sum": "add", "max": "maximum", "min": "minimum"}
_LOGICAL = {"sum": "or", "max": "or", "min": "and"}  # for booleans


@final
@dataclass(frozen=True)
class HloValue:
    """A name in the text, and its type."""

    name: str
    type: ArrayType


class Builder:
    """Lines of one function's body."""

    def __init__(self, mesh: AbstractMesh):
        self.mesh = mesh
        self.lines: list[str] = []
        self.location = ""
        self._count = 0
        # Tables of devices stand before the module, once for all collectives that use them: on 4,096 devices one is
        # 20 kB of text.
        self.heads: list[str] = []
        self._tables: dict[tuple[Any, ...], str] = {}
        self._indices: dict[tuple[str, ...], HloValue] = {}

    def at(self, source: Source, kind: str) -> None:
        """What follows comes from this line. A profile shows the last part of the name: it ends with the op's kind."""
        if source.file:
            name, file = _escaped(f"{source}/{kind}"), _escaped(source.file)
            self.location = f' loc("{name}"("{file}":{source.line}:0))'
        else:
            self.location = f' loc("{_escaped(kind)}")'

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
        types = ", ".join([tensor(x.type) for x in operands])
        self.lines.append(f'{result} = "{name}"({names}){inside}{region} : ({types}) -> {tensor(out)}{self.location}')
        return HloValue(result, out)

    def barrier(self, operands: Sequence[HloValue]) -> list[HloValue]:
        """The operands, none of which is there before all are."""
        result = f"%{self._count}"
        self._count += 1
        names, types = ", ".join(x.name for x in operands), ", ".join(tensor(x.type) for x in operands)
        op = f'{result}:{len(operands)} = "stablehlo.optimization_barrier"({names})'
        self.lines.append(f"{op} : ({types}) -> ({types}){self.location}")
        return [HloValue(f"{result}#{number}", x.type) for number, x in enumerate(operands)]

    def constant(self, value: Any, type: ArrayType) -> HloValue:
        """An array of one value."""
        return self.op("stablehlo.constant", (), type, f"value = dense<{literal(value, type.dtype)}> : {tensor(type)}")

    def reducer(self, how: str, dtype: DType) -> str:
        """The region that reduces two scalars."""
        scalar = tensor(ArrayType((), dtype))
        name = (_LOGICAL if dtype == np.bool_ else _REDUCERS)[how]
        return (
            f"{{ ^bb0(%a: {scalar}, %b: {scalar}): %r = stablehlo.{name} %a, %b : {scalar} "
            f"stablehlo.return %r : {scalar} }}"
        )

    def groups(self, axes: tuple[str, ...]) -> str:
        """The devices that take part in a collective along `axes`, group by group."""
        return self._table(("groups", axes), lambda: self.mesh.groups(axes))

    def pairs(self, permute: Permute) -> str:
        """Source and target of every message."""
        return self._table(("pairs", permute), lambda: permute.pairs(self.mesh))

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
        if axes not in self._indices:
            scalar = ArrayType((), np.int32)
            if () not in self._indices:
                number = self.op("stablehlo.replica_id", (), ArrayType((), np.uint32))
                self._indices[()] = self.op("stablehlo.convert", (number,), scalar)
            position = None
            for axis in axes:
                place = self.mesh.axis_names.index(axis)
                stride = self.mesh.extent(self.mesh.axis_names[place + 1 :])
                size = self.constant(self.mesh.shape[axis], scalar)
                digit = self.op("stablehlo.divide", (self._indices[()], self.constant(stride, scalar)), scalar)
                digit = self.op("stablehlo.remainder", (digit, size), scalar)
                if position is not None:
                    digit = self.op(
                        "stablehlo.add", (self.op("stablehlo.multiply", (position, size), scalar), digit), scalar
                    )
                position = digit
            assert position is not None
            self._indices[axes] = position
        return self._indices[axes]


def tensor(type: ArrayType) -> str:
    """The MLIR spelling of a type."""
    return f"tensor<{''.join([f'{size}x' for size in type.shape])}{_element(type.dtype)}>"


def _element(dtype: DType) -> str:
    name = short_name(dtype)
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
