"""reshard: change the sharding of a value along Explicit mesh axes."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.explicit import Axes, ExplicitSharding
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ShardingTypeError


@final
@record
class Reshard(Op):
    """The identity; the result has this sharding along the Explicit axes of `mesh`, and its state along Manual ones.

    A `scoped` mesh belongs to a part of the program; along its Auto axes, the planner decides. Without a mesh, the
    result is replicated along all Explicit axes of the mesh that the program runs on. The cotangent has the cotangent
    sharding of the operand: a cast to `reduced` does not communicate, and its transpose leaves the cotangent unreduced.
    """

    name = "reshard"
    accepts_keys = infers_sharding = True
    user_function = "reshard"
    dims: tuple[Axes, ...]
    mesh: Mesh | AbstractMesh | None
    unreduced: Axes = ()
    reduced: Axes = ()
    scoped: bool = field(default=False, repr=False)

    @property
    def user_mesh(self) -> Mesh | AbstractMesh | None:
        return self.mesh

    @staticmethod
    def to(sharding: ExplicitSharding | None, ndim: int, mesh: Mesh | AbstractMesh | None) -> "Reshard":
        """Return the op that reshards an array of this rank. None replicates it along the Explicit axes."""
        if sharding is None:
            return Reshard(((),) * ndim, mesh)
        return Reshard(sharding.dims, sharding.mesh, sharding.unreduced, sharding.reduced, sharding.scoped)

    @property
    def sharding(self) -> ExplicitSharding | None:
        if self.mesh is None:
            return None
        return ExplicitSharding.from_dims(self.mesh, self.dims, self.unreduced, self.reduced, self.scoped)

    def out_type(self, x: ArrayType) -> ArrayType:
        if len(self.dims) != x.ndim:
            raise TypeError(f"reshard: the sharding has {len(self.dims)} dims, but {x} has {x.ndim}")
        if self.mesh is None:
            return x.with_explicit(None)
        terms, copies = x.explicit.manual_sums if x.explicit else ((), ())
        sums, copies = (*self.unreduced, *terms), (*self.reduced, *copies)
        return x.with_explicit(ExplicitSharding.from_dims(self.mesh, self.dims, sums, copies, self.scoped))

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.pointwise(x.shape, 1)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (reshard_to(cotangent, cotangent_type(operands[0].type).explicit),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        assert dim is not None
        mesh, scoped, batch_axes = self.mesh, self.scoped, axis.spmd
        if not batch_axes and axis.explicit is not None:
            batch_axes = axis.explicit.dims[0]
            if mesh is None:
                mesh, scoped = axis.explicit.mesh, axis.explicit.scoped
        batch_axes = tuple(name for name in batch_axes if mesh and name in mesh.explicit_axes)
        used = {*self.unreduced, *self.reduced, *(name for axes in self.dims for name in axes)}
        if twice := [name for name in batch_axes if name in used]:
            raise ShardingTypeError(
                f"reshard: {Layout(self.dims)} uses axis {twice[0]!r}, which shards the mapped dim of a vmap. Use "
                f"other axes here, or map over a dim that is not sharded along {twice[0]!r}: reshard the argument of "
                "the vmapped function."
            )
        batched = (*self.dims[:dim], batch_axes, *self.dims[dim:])
        return replace(self, dims=batched, mesh=mesh, scoped=scoped)(x), dim

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x


def reshard_to(x: Operand, sharding: ExplicitSharding | None) -> Any:
    """Return `x` with this sharding along Explicit axes; `x` itself if it already has it."""
    if x.type.explicit == sharding:
        return x
    source, target = (of and of.with_manual_sums((), ()) for of in (x.type.explicit, sharding))
    if source == target:
        return x
    mesh = target.mesh if target else source.mesh if source and not source.scoped else None
    return Reshard.to(target, x.type.ndim, mesh)(x)


def shard_batch_dim(x: Operand, dim: int, axis: BatchAxis) -> Any:
    """Return `x` with its batch dim sharded like the mapped dims of vmap along Explicit axes."""
    if axis.explicit is None:
        return x
    return reshard_to(x, x.type.without((dim,)).with_dim(dim, axis.size, axis.explicit).explicit)


def cotangent_type(primal: ArrayType) -> ArrayType:
    """Return the type of the cotangent of a value, in which the unreduced and reduced axes are swapped."""
    sharding = primal.explicit
    if sharding is None or not (sharding.unreduced or sharding.reduced):
        return primal
    return primal.with_explicit(sharding.cotangent)
