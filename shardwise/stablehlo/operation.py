"""An op of a module, with its attributes as Python values and its regions as functions of arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import mlir_dialects, mlir_ir
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.program import Source
from shardwise.compiler.ir.types import ArrayType
from shardwise.stablehlo.module import Module
from shardwise.stablehlo.types import array_type

_ENUMS = {
    "comparison_direction": "ComparisonDirectionAttr",
    "compare_type": "ComparisonTypeAttr",
    "fft_type": "FftTypeAttr",
    "precision_config": "PrecisionAttr",
    "rng_algorithm": "RngAlgorithmAttr",
    "rng_distribution": "RngDistributionAttr",
    "transpose_a": "TransposeAttr",
}


@final
@dataclass(frozen=True)
class Operation:
    """An op that is being applied.

    Attributes:
        raw: the op of MLIR.
        module: the module that it belongs to.
        source: its source line.
        evaluate: returns the results of a block of MLIR, for arguments.
    """

    raw: Any
    module: Module
    source: Source
    evaluate: Callable[[Any, Sequence[Any]], list[Any]]

    @property
    def name(self) -> str:
        return str(self.raw.name)

    @property
    def out_types(self) -> list[ArrayType]:
        return [array_type(result.type) for result in self.raw.results]

    @property
    def out_type(self) -> ArrayType:
        """The type of the only result."""
        (type,) = self.out_types
        return type

    def has(self, name: str) -> bool:
        return name in self.raw.attributes

    def attribute(self, name: str) -> Any:
        """Return an attribute of MLIR; None if the op lacks it."""
        return self.raw.attributes[name] if self.has(name) else None

    def integer(self, name: str) -> int:
        return int(self.attribute(name).value)

    def flag(self, name: str) -> bool:
        """Return a boolean attribute. A missing one is False, and a unit attribute is True."""
        value = self.attribute(name)
        return value is not None and (isinstance(value, mlir_ir.UnitAttr) or bool(value.value))

    def text(self, name: str) -> str:
        """Return a string or symbol attribute; empty if the op lacks it."""
        value = self.attribute(name)
        return "" if value is None else str(value.value)

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an attribute that is an array of integers."""
        value = self.attribute(name)
        return tuple(default) if value is None else tuple(int(x) for x in value)

    def padding(self, ndim: int) -> list[tuple[int, int]]:
        """Return the attribute `padding`: the low and high padding of each dim; zeros if the op lacks it."""
        return [(low, high) for low, high in self.table("padding")] or [(0, 0)] * ndim

    def table(self, name: str) -> list[tuple[int, ...]]:
        """Return an attribute that is a matrix of integers, as its rows; an empty list if the op lacks it."""
        value = self.attribute(name)
        if value is None:
            return []
        return [tuple(int(x) for x in row) for row in np.array(value).reshape(tuple(value.type.shape))]

    def enum(self, name: str) -> str:
        """Return an enum attribute of StableHLO, such as `LT`; empty if the op lacks it."""
        value = self.attribute(name)
        return "" if value is None else str(getattr(mlir_dialects["stablehlo"], _ENUMS[name])(value).value)

    def enums(self, name: str) -> tuple[str, ...]:
        """Return an array of enum attributes of StableHLO."""
        value = self.attribute(name)
        return (
            ()
            if value is None
            else tuple(str(getattr(mlir_dialects["stablehlo"], _ENUMS[name])(x).value) for x in value)
        )

    def numbers(self, name: str, kind: str) -> Any:
        """Return dimension numbers of StableHLO, such as `DotDimensionNumbers`."""
        return getattr(mlir_dialects["stablehlo"], kind)(self.attribute(name))

    def inner(self, raw: object) -> "Operation":
        """Return an op inside of a region."""
        return Operation(raw, self.module, self.source, self.evaluate)

    @property
    def regions(self) -> list[Any]:
        """The only block of each region, as a block of MLIR."""
        return [region.blocks[0] for region in self.raw.regions]

    def region(self, index: int = 0) -> Callable[..., list[Array]]:
        """Return the function of arrays that a region computes."""
        block = self.regions[index]
        return lambda *args: self.evaluate(block, args)

    def function(self, name: str) -> Callable[..., list[Array]]:
        """Return the function of arrays of a `func.func` of the module."""
        function = self.module.function(name)
        return lambda *args: self.evaluate(function.body, args)
