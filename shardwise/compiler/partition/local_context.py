"""The scope in which equations are emitted, and the `LocalContext` that an op's `localize` rule receives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import DeviceIndex
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.tracer import Frame

Shape = tuple[int, ...]
ManualAxes = Mapping[str, tuple[str, ...]]  # axis of a manual region → its mesh axes
NO_MANUAL_AXES: ManualAxes = MappingProxyType({})


@final
@dataclass(frozen=True)
class Scope:
    """Where equations are emitted: the frame of their program, and the axes of the enclosing manual regions."""

    frame: Frame
    manual_axes: ManualAxes = field(default_factory=dict)


@final
class ShardView:
    """The shards of one equation's operands and results on a device: the `LocalContext` of its op.

    Args:
        mesh: the mesh.
        layouts: the layouts of the results.
        padded_shapes: the padded global shapes of the results.
        global_types: the types of the operands in the unpartitioned program.
        operand_layouts: the layouts of the operands.
        operand_shapes: the shapes of the operands' shards.
        manual_axes: the axes of the enclosing manual regions.
    """

    def __init__(
        self,
        mesh: AbstractMesh,
        layouts: Sequence[Layout],
        padded_shapes: Sequence[Shape],
        global_types: tuple[ArrayType, ...] = (),
        operand_layouts: Sequence[Layout] = (),
        operand_shapes: Sequence[Shape] = (),
        manual_axes: ManualAxes = NO_MANUAL_AXES,
    ):
        self.mesh = mesh
        self.layouts = layouts
        self.out_shapes = tuple(
            layout.shard_shape(shape, mesh) for layout, shape in zip(layouts, padded_shapes, strict=True)
        )
        self.global_types = global_types
        self._operand_layouts = operand_layouts
        self._operand_shapes = operand_shapes
        self._manual_axes = manual_axes
        manual = {axis for axes in manual_axes.values() for axis in axes}
        self.auto_axes = tuple([axis for axis in mesh.axis_names if axis not in manual])

    def mesh_axes_of(self, name: str) -> tuple[str, ...]:
        return self._manual_axes[name]

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        layout = self.layouts[0] if operand is None else self._operand_layouts[operand]
        axes = layout.dims[dim]
        return axes, self.mesh.extent(axes)

    def offset(self, dim: int, dtype: DTypeLike, operand: int | None = None) -> Any:
        axes, _ = self.sharding_of(dim, operand)
        if not axes:
            return None
        index = DeviceIndex(axes)()
        shard_shape = self.out_shapes[0] if operand is None else self._operand_shapes[operand]
        start = Mul()(index, full((), shard_shape[dim], np.int32))
        return start if np.dtype(dtype) == np.int32 else Convert(np.dtype(dtype))(start)
