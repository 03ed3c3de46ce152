"""Ops whose derivative the user has written: custom_jvp, custom_vjp.

Each holds the function itself as a program, which is what runs, and a rule: a Python object that computes derivatives
on flat lists of arrays by applying ops. Rules compare by identity; a program with one prints, but does not read back.
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
    """The derivative of a function in forward mode."""

    @property
    def name(self) -> str: ...
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]: ...


class VjpRule(Protocol):
    """The derivative of a function in reverse mode: results and residuals, and from these and cotangents back."""

    @property
    def name(self) -> str: ...
    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any]]: ...
    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]: ...


@record
class Custom(CallLike):
    """The program's results. The last `captured` operands are values that the function closes over."""

    captured: int

    def given(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arguments proper and their tangents; a captured value cannot have one."""
        count = len(primals) - self.captured
        if any(tangent is not None for tangent in tangents[count:]):
            raise TypeError(
                f"{self.name}: `{self.program.name}` closes over a value that is being differentiated, and its rule "
                "has no derivative for that: make the value an argument"
            )
        return list(primals[:count]), list(tangents[:count])


@final
@record
class CustomJvp(Custom):
    """A function with its derivative in forward mode."""

    name = "custom_jvp"
    rule: JvpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.rule.jvp(*self.given(primals, tangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims), everywhere=True)
        rule = _MappedJvp(self.rule, axis, tuple(dims[: len(dims) - self.captured]))
        return CustomJvp(program, self.captured, rule)(*operands), out_dims


@final
@record
class CustomVjp(Custom):
    """A function with its derivative in reverse mode."""

    name = "custom_vjp"
    rule: VjpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise TypeError(
            f"custom_vjp: `{self.program.name}` has a rule for reverse mode only: jvp and jacfwd cannot differentiate "
            "it. Use grad, vjp or jacrev, or write it with custom_jvp."
        )

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        given, moving = self.given(primals, tangents)
        active = present_mask(moving)
        results, residuals = self.rule.forward(given, active)
        types = tuple(x.type for x in given)
        backward = CustomLin(self.rule, types, self.program.out_types, active, len(residuals))
        return results, backward(*residuals, *drop_none(moving))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims), everywhere=True)
        rule = _MappedVjp(self.rule, axis, tuple(dims[: len(dims) - self.captured]))
        return CustomVjp(program, self.captured, rule)(*operands), out_dims


@final
@record
class CustomLin(Op):
    """The linear map of a custom_vjp function, known by its transpose only. Operands: residuals, active tangents."""

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
        found = self.rule.backward(residuals, cotangent)
        return (*[None] * self.residuals, *(ct for ct, here in zip(found, self.active, strict=True) if here))

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        raise TypeError(f"custom_vjp: `{self.rule.name}` has a rule for reverse mode only; forward it cannot be run")

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        self.reference()


@final
@record
class _MappedJvp:
    """A rule over one more dim, which all results have at dim 0."""

    rule: JvpRule
    axis: BatchAxis
    dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        here = present_mask(tangents)
        moving: tuple[bool, ...] = ()

        def both(*args: Any) -> list[Any]:
            nonlocal moving
            results, moved = self.rule.jvp(args[: len(primals)], insert_none(args[len(primals) :], here))
            moving = present_mask(moved)
            return [*results, *drop_none(moved)]

        # A tangent has the dim of its primal.
        dims = (*self.dims, *(dim for dim, is_here in zip(self.dims, here, strict=True) if is_here))
        found = _mapped(both, self.axis, [*primals, *drop_none(tangents)], dims, self.name)
        return found[: len(moving)], insert_none(found[len(moving) :], moving)


@final
@record
class _MappedVjp:
    """A rule over one more dim, which all results and residuals have at dim 0."""

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

        found = _mapped(both, self.axis, primals, self.dims, self.name)
        return found[:count], found[count:]

    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        def back(*args: Any) -> list[Any]:
            return self.rule.backward(
                args[: len(residuals)], insert_none(args[len(residuals) :], present_mask(cotangents))
            )

        args = [*residuals, *drop_none(cotangents)]
        found = _mapped(back, self.axis, args, (0,) * len(args), self.name)
        # An argument that all share gets the sum of what each sends it.
        return [
            Sum((0,))(ct) if dim is None else move_dim(ct, 0, dim) for ct, dim in zip(found, self.dims, strict=True)
        ]


def _mapped(function: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], name: str) -> list[Any]:
    outputs, places = installed.transforms.map_function(function, axis, args, dims, name)
    return [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(outputs, places, strict=True)]
