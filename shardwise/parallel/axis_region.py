"""Regions of building blocks: a block's function runs per device along the mesh axes that it communicates over.

Inside a `shard_map` (or a `vmap` with an axis name) that binds the axes, operands are shards already, and the function
is called on them. Elsewhere operands are unsharded arrays, and the function runs in a `shard_map` over these axes only;
the planner shards along the other axes of the mesh.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias, final

from shardwise.api.meshes.shard_map import shard_map
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context
from shardwise.errors import StrategyError
from shardwise.lax.manual_axes import make_varying
from shardwise.typing import ArrayLike

# The name of a mesh axis, or several names, the first one major.
MeshAxes: TypeAlias = str | Sequence[str]


@final
@dataclass(frozen=True)
class AxisRegion:
    """The mesh axes over which a building block communicates.

    Attributes:
        axes: their names, the first one major. None: the block runs on one device.
        size: the number of devices along them.
        mesh: the mesh of the `shard_map` to run in; None if the axes are bound already, and operands are shards.
    """

    axes: tuple[str, ...]
    size: int
    mesh: Mesh | AbstractMesh | None

    def run(self, function: Callable[..., Any], in_specs: object, out_specs: object, *operands: object) -> Any:
        """Call `function` on the shards of the operands."""
        if self.mesh is None:
            return function(*operands)
        mapped = shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names=frozenset(self.axes)
        )
        return mapped(*operands)

    def global_size(self, size: int) -> int:
        """Return the size of a dim of the unsharded array, given the size that the caller's operand has."""
        return size * self.size if self.mesh is None else size

    def shard_size(self, name: str, what: str, size: int, hint: str = "") -> int:
        """Return the size of a shard of a dim, given the size that the caller's operand has.

        Raises:
            StrategyError: if the devices do not divide it. `name` is the function, `what` the dim, and `hint` what to
                do besides, for messages.
        """
        if self.mesh is None:
            return size
        if size % self.size:
            padded = -(-size // self.size) * self.size
            raise StrategyError(
                f"{name}: {what} is {size}, which the {self.size} devices along {axis_text(self.axes)} do not divide. "
                f"Pad it to {padded}, or use another mesh.{hint}"
            )
        return size // self.size


def axis_region(name: str, axis: MeshAxes | None, mesh: Mesh | AbstractMesh | None) -> AxisRegion:
    """Return the region over `axis`: a name of a mesh axis, a tuple of names, or None for one device.

    Raises:
        StrategyError: if there is no mesh or no such axis. `name` is the public function, for messages.
    """
    axes = () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
    bound = bound_axes()
    unbound = [each for each in axes if each not in bound]
    if not unbound:
        size = 1
        for each in axes:
            size *= bound[each]
        return AxisRegion(axes, size, None)
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"{name}: mesh must be a Mesh or an AbstractMesh, not {mesh!r}")
    if mesh is None:
        mesh = mesh_context.mesh
    if mesh is None:
        raise StrategyError(
            f"{name}: axis {unbound[0]!r} needs a mesh. Pass `mesh=`, set one with `set_mesh(mesh)`, or call it inside "
            "a shard_map over the axis."
        )
    for each in axes:
        if each not in mesh.axis_names:
            near = get_close_matches(each, mesh.axis_names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise StrategyError(
                f"{name}: the mesh has no axis {each!r}; it has {', '.join(map(repr, mesh.axis_names))}.{hint}"
            )
    if len(unbound) < len(axes):
        manual = next(each for each in axes if each in bound)
        raise StrategyError(
            f"{name}: {manual!r} is manual here, but {unbound[0]!r} is not. Make the shard_map manual over all of "
            f"{axis_text(axes)}, or over none of them."
        )
    return AxisRegion(axes, int(mesh.abstract.extent(axes)), mesh)


def vary_alike(*operands: ArrayLike) -> list[Array]:
    """Cast operands to varying over all axes that one of them varies over.

    The transpose of the casts sums gradients over devices, so a rule for derivatives of the operands need not do it.
    """
    arrays = [as_operand(operand) for operand in operands]
    axes = {axis: None for array in arrays for axis in array.type.varying}
    return [make_varying(array, axes) for array in arrays]


def axis_text(axes: tuple[str, ...]) -> str:
    """Return axis names as text, for messages."""
    return " × ".join(map(repr, axes))
