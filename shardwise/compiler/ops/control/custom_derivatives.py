"""Functions with a derivative rule of the user: custom_jvp and custom_vjp.

Each op holds the function as a program, which runs, and a rule: a Python object that computes derivatives on flat lists
of arrays by applying ops. Rules compare by identity. A program that contains one can be printed, but not parsed.
"""

from collections.abc import Sequence
from typing import Any, Protocol, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, UndefinedPrimal
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import CallLike, drop_none, insert_none, present_mask
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import move_dim


class JvpRule(Protocol):
    """A derivative rule for forward mode."""

    @property
    def name(self) -> str: ...
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]: ...


class VjpRule(Protocol):
    """A derivative rule for reverse mode.

    `forward` returns results and residuals; `backward` maps residuals and cotangents of results to those of arguments.
    """

    @property
    def name(self) -> str: ...
    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any]]: ...
    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]: ...


@record
class Custom(CallLike):
    """A call with a derivative rule. The last `captured` operands are values that the function closes over."""

    captured: int

    def without_captured(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the primals and tangents of the function's arguments. Captured values must not have tangents."""
        count = len(primals) - self.captured
        if any(tangent is not None for tangent in tangents[count:]):
            raise TypeError(
                f"{self.name}: `{self.program.name}` closes over a value that is being differentiated, but its "
                "rule has no derivative for it. Pass the value as an argument."
            )
        return list(primals[:count]), list(tangents[:count])


@final
@record
class CustomJvp(Custom):
    """A function with a derivative rule for forward mode."""

    name = "custom_jvp"
    rule: JvpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.rule.jvp(*self.without_captured(primals, tangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims), everywhere=True)
        rule = _MappedJvp(self.rule, axis, tuple(dims[: len(dims) - self.captured]))
        return CustomJvp(program, self.captured, rule)(*operands), out_dims


@final
@record
class CustomVjp(Custom):
    """A function with a derivative rule for reverse mode."""

    name = "custom_vjp"
    rule: VjpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise TypeError(
            f"custom_vjp: `{self.program.name}` has a rule for reverse mode only: jvp and jacfwd cannot differentiate "
            "it. Use grad, vjp or jacrev, or write it with custom_jvp."
        )

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        primals, tangents = self.without_captured(primals, tangents)
        active = present_mask(tangents)
        results, residuals = self.rule.forward(primals, active)
        types = tuple(x.type for x in primals)
        linear = CustomLin(self.rule, types, self.program.out_types, active, len(residuals))
        return results, linear(*residuals, *drop_none(tangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims), everywhere=True)
        rule = _MappedVjp(self.rule, axis, tuple(dims[: len(dims) - self.captured]))
        return CustomVjp(program, self.captured, rule)(*operands), out_dims


@final
@record
class CustomLin(Op):
    """The linear map of a custom_vjp function, of which only the transpose is known. JAX: custom_lin.

    Operands: residuals, then the tangents of active arguments.
    """

    name = "custom_lin"
    single = False
    accepts_keys = infers_varying = True
    rule: VjpRule
    in_types: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    active: tuple[bool, ...]
    residuals: int

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        return tuple(type.varying for type in types)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        residuals = operands[: self.residuals]
        if any(isinstance(x, UndefinedPrimal) for x in residuals):
            raise TypeError(f"custom_vjp: `{self.rule.name}` cannot be transposed with respect to its residuals")
        cotangents = self.rule.backward(residuals, cotangent)
        active = (ct for ct, is_active in zip(cotangents, self.active, strict=True) if is_active)
        return (*[None] * self.residuals, *active)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        raise TypeError(
            f"custom_vjp: `{self.rule.name}` has a rule for reverse mode only; its forward derivative cannot run"
        )

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        self.reference()


@final
@record
class _MappedJvp:
    """A JVP rule under vmap; all results are batched along dim 0."""

    rule: JvpRule
    axis: BatchAxis
    dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        active = present_mask(tangents)
        out_active: tuple[bool, ...] = ()

        def both(*args: Any) -> list[Any]:
            nonlocal out_active
            results, out_tangents = self.rule.jvp(args[: len(primals)], insert_none(args[len(primals) :], active))
            out_active = present_mask(out_tangents)
            return [*results, *drop_none(out_tangents)]

        # A tangent has the batch dim of its primal.
        dims = (*self.dims, *(dim for dim, is_active in zip(self.dims, active, strict=True) if is_active))
        outputs = _vmap(both, self.axis, [*primals, *drop_none(tangents)], dims, self.name)
        return outputs[: len(out_active)], insert_none(outputs[len(out_active) :], out_active)


@final
@record
class _MappedVjp:
    """A VJP rule under vmap; all results and residuals are batched along dim 0."""

    rule: VjpRule
    axis: BatchAxis
    dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        count = 0

        def both(*args: Any) -> list[Any]:
            nonlocal count
            results, residuals = self.rule.forward(args, active)
            count = len(results)
            return [*results, *residuals]

        outputs = _vmap(both, self.axis, primals, self.dims, self.name)
        return outputs[:count], outputs[count:]

    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        def back(*args: Any) -> list[Any]:
            return self.rule.backward(
                args[: len(residuals)], insert_none(args[len(residuals) :], present_mask(cotangents))
            )

        args = [*residuals, *drop_none(cotangents)]
        batched = _vmap(back, self.axis, args, (0,) * len(args), self.name)
        # The cotangent of an unbatched argument is the sum over the batch.
        return [
            Sum((0,))(ct) if dim is None else move_dim(ct, 0, dim) for ct, dim in zip(batched, self.dims, strict=True)
        ]


def _vmap(function: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], name: str) -> list[Any]:
    """Apply vmap to `function`, with all outputs batched along dim 0."""
    outputs, out_dims = installed.transforms.map_function(function, axis, args, dims, name)
    return [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(outputs, out_dims, strict=True)]
