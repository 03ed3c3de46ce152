"""constrain: the value itself, pinned to a layout."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ShardingError


@final
@record
class Constrain(Op):
    """The operand, laid out on `mesh` by `dims`. `open_dims` may be cut further; the other dims are closed."""

    name = "constrain"
    accepts_keys = True
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
        self._check_free(axis.spmd)
        open_dims = tuple(d + (d >= dim) for d in self.open_dims)
        if not axis.spmd:
            open_dims = tuple(sorted((dim, *open_dims)))
        return Constrain((*self.dims[:dim], axis.spmd, *self.dims[dim:]), self.mesh, open_dims)(*operands), dim

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x

    def _check_free(self, spmd: tuple[str, ...]) -> None:
        """The mesh axes that vmap gives its dim must exist, and no other dim may have them."""
        mesh = self.mesh.abstract
        for axis in spmd:
            taken = next((dim for dim, axes in enumerate(self.dims) if axis in axes), None)
            if taken is None and axis in mesh.axis_names:
                continue
            why = mesh.unknown_axis_message(axis) if taken is None else f"axis {axis!r} cuts dim {taken} already"
            raise ShardingError(f"vmap with spmd_axis_name={spmd} does not fit with_sharding_constraint inside: {why}")
