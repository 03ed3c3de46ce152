"""UserKernel: a Triton kernel that a user wrote, as an op.

A definition has the kernel, its meaning as a function of other ops, and its rules. It is compared by identity.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand, as_strong
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.check_module import check_module
from shardwise.compiler.kernels.kernel import KernelOp, Launch, plain_program
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.factors import FactorRule


@final
@dataclass(frozen=True, eq=False)
class KernelDefinition:
    """A user's kernel.

    Attributes:
        title: its name.
        plain: operands → results, by other ops.
        ir: types of operands and results → a module in Triton IR.
        launch: types of operands and results → the grid, the warps per program and the stages of loops.
        rule: types of operands and results, as the program of `plain` → the factor rule.
        gradient: operands, results and cotangents → cotangents of the operands; None if `plain` is differentiated.
        obstacle: types of operands and results → why the kernel does not support them; "" if it does.
        batched: for each operand, whether it may have further leading dims, which results then have too; None if not.
        written: pairs (result, operand whose buffer it reuses).
    """

    title: str
    plain: Callable[..., Sequence[Any]]
    ir: Callable[..., str]
    launch: Callable[..., tuple[tuple[int, int, int], int, int]]
    rule: Callable[[Any], FactorRule]
    gradient: Callable[..., Sequence[Any]] | None
    obstacle: Callable[..., str]
    batched: tuple[bool, ...] | None
    written: tuple[tuple[int, int], ...]


@final
@record
class UserKernel(KernelOp):
    """A user's Triton kernel."""

    name = "triton_kernel"
    title: str
    definition: KernelDefinition = field(repr=False)

    @property
    def label(self) -> str:
        return self.title

    @property
    def has_gradient(self) -> bool:
        return self.definition.gradient is not None

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self._plain_program(types).out_types

    def factors(self, *types: ArrayType) -> FactorRule:
        return self.definition.rule(self._plain_program(types))

    def _plain_program(self, types: Sequence[ArrayType]) -> Program:
        return plain_program(self, tuple(type.plain.strong() for type in types))

    def plain(self, *operands: Operand) -> list[Any]:
        return list(self.definition.plain(*operands))

    def gradient(
        self, operands: Sequence[Operand], results: Sequence[Operand], cotangents: Sequence[Operand]
    ) -> Sequence[Any]:
        assert self.definition.gradient is not None
        found = self.definition.gradient(operands, results, cotangents)
        if not isinstance(found, Sequence):
            raise TypeError(
                f"the gradient of the kernel {self.title!r} returns {found!r}: return one cotangent per operand"
            )
        if len(found) != len(operands):
            raise TypeError(
                f"the gradient of the kernel {self.title!r} returns {len(found)} cotangents for {len(operands)} "
                "operands: return one per operand, or None for an operand that has none"
            )
        name = f"the gradient of the kernel {self.title!r}"
        found = [None if ct is None else as_strong(as_operand(ct, name)) for ct in found]
        for index, (ct, operand) in enumerate(zip(found, operands, strict=True)):
            if ct is not None and ct.type.plain != operand.type.plain:
                raise TypeError(
                    f"the gradient of the kernel {self.title!r} returns {ct.type.plain} for operand {index}, "
                    f"{operand.type.plain}: a cotangent must have the type of its operand"
                )
        return [
            full(operand.type.shape, 0, operand.type.dtype) if ct is None else ct
            for ct, operand in zip(found, operands, strict=True)
        ]

    def obstacle(self, *types: ArrayType) -> str:
        arrays = (*types, *self.out_types(*types))
        for type in arrays:
            if type.dtype.kind == "c" or not type.size:
                return f"{type} is {'complex' if type.size else 'empty'}"
        return self.definition.obstacle(*arrays)

    def kernel_launch(self, *types: ArrayType) -> Launch:
        results = self.out_types(*types)
        (programs, *more_axes), warps, stages = self.definition.launch(*types, *results)
        return Launch(programs, warps, results, (more_axes[0], more_axes[1]), stages, self.definition.written)

    def triton_ir(self, launch: Launch, *types: ArrayType) -> tuple[str, str]:
        module = self.definition.ir(*types, *launch.results)
        return check_module(self.title, module, types, launch.results), module

    def vmap(self, axis: BatchAxis, operands: Sequence[Operand], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = self.definition.batched
        if batched is None or any(dim is not None and not has for dim, has in zip(dims, batched, strict=True)):
            return super().vmap(axis, operands, dims)
        leading = [
            batch_dim_at(x, dim, 0, axis.size) if has else x
            for x, dim, has in zip(operands, dims, batched, strict=True)
        ]
        results = self(*leading)
        return results, (0,) * len(results)
