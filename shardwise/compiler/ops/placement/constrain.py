"""constrain: pin a value to a layout (`with_sharding_constraint`)."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, LocalContext, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Source
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin, partial_sums
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.refine import refine_pin, sub_axes_of
from shardwise.errors import ShardingError


@final
@record
class Constrain(Op):
    """The identity; the result is pinned on `mesh` to the layout `dims`. `open_dims` may be sharded further.

    With `axes`, only these axes are pinned, and the planner decides along the others. Over the axes `unreduced`, the
    result is a partial sum. `requested_by`, for messages, is the parameter of `jit` that requests the layout, or
    `reshard`; empty for a constraint.
    """

    name = "constrain"
    accepts_keys = True
    user_function = "with_sharding_constraint"
    dims: tuple[tuple[str, ...], ...]
    mesh: Mesh | AbstractMesh
    open_dims: tuple[int, ...] = ()
    axes: tuple[str, ...] | None = None
    unreduced: tuple[str, ...] = ()
    requested_by: str = field(default="", repr=False)

    def describe(self, source: Source) -> str:
        # For example "in_shardings for `w` at train.py:41".
        return f"{self.requested_by or 'the constraint'} at {source}"

    @property
    def user_mesh(self) -> Mesh | AbstractMesh:
        return self.mesh

    @property
    def constraint(self) -> Pin:
        return Pin(Layout(self.dims, partial_sums(self.unreduced)), frozenset(self.open_dims))

    def pins(self, axis: str) -> bool:
        return self.axes is None or axis in self.axes

    def refine(self, mesh: Mesh | AbstractMesh, refine_program: Callable[[Program], Program]) -> "Constrain":
        coarse, fine = self.mesh.abstract, mesh.abstract
        sub_axes = sub_axes_of(coarse, fine)
        axes = None if self.axes is None else tuple(part for axis in self.axes for part in sub_axes[axis])
        return replace(self, dims=refine_pin(self.constraint, coarse, fine).layout.dims, mesh=mesh, axes=axes)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return operands[0]  # the plan has chosen the pinned layout for the operand

    def out_type(self, x: ArrayType) -> ArrayType:
        if len(self.dims) != x.ndim:
            raise TypeError(f"constrain: the layout has {len(self.dims)} dims, but {x} has {x.ndim}")
        return x

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.pointwise(x.shape, 1)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return () if self.axes is None else ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (self(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        self._check_unused(axis.spmd)
        open_dims = tuple(d + (d >= dim) for d in self.open_dims)
        if not axis.spmd:
            open_dims = tuple(sorted((dim, *open_dims)))
        batched = (*self.dims[:dim], axis.spmd, *self.dims[dim:])
        return replace(self, dims=batched, open_dims=open_dims)(*operands), dim

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x

    def _check_unused(self, spmd: tuple[str, ...]) -> None:
        """Check that the mesh axes of vmap's batch dim exist and that no other dim uses them."""
        mesh = self.mesh.abstract
        for axis in spmd:
            used_by = next((dim for dim, axes in enumerate(self.dims) if axis in axes), None)
            if used_by is None and axis in mesh.axis_names:
                continue
            reason = (
                mesh.unknown_axis_message(axis) if used_by is None else f"axis {axis!r} already shards dim {used_by}"
            )
            raise ShardingError(
                f"vmap with spmd_axis_name={spmd} is incompatible with a with_sharding_constraint inside: {reason}"
            )
