"""constrain: the value itself, pinned to a layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh


@final
@dataclass(frozen=True)
class Constrain(Op):
    """The operand, laid out on `mesh` by `dims`. `open_dims` may be cut further; the other dims are closed."""

    name = "constrain"
    dims: tuple[tuple[str, ...], ...]
    mesh: Mesh | AbstractMesh
    open_dims: tuple[int, ...] = ()

    @property
    def pin(self) -> Pin:
        return Pin(Layout(self.dims), frozenset(self.open_dims))

    def out_type(self, x: ArrayType) -> ArrayType:
        if len(self.dims) != x.ndim:
            raise TypeError(f"constrain: a layout of {len(self.dims)} dims does not fit {x}")
        return x

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.pointwise(x.shape, 1)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        open_dims = (dim, *(d + (d >= dim) for d in self.open_dims))
        batched = Constrain((*self.dims[:dim], (), *self.dims[dim:]), self.mesh, tuple(sorted(open_dims)))
        return batched(*operands), dim

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x
