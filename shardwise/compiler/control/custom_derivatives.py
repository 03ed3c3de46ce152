"""Functions with a user-defined derivative rule: custom_jvp and custom_vjp.

Each op holds the function as a program, which runs, and a rule: a Python object that computes derivatives on flat lists
of arrays by applying ops. Rules compare by identity. A program that contains a rule can be printed, but not parsed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.transforms.vmap import map_function, vmap_program


class JvpRule(Protocol):
    """A derivative rule for forward mode."""

    @property
    def name(self) -> str: ...
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]: ...


class VjpRule(Protocol):
    """A derivative rule for reverse mode. `forward` returns the results, the residuals, and the cotangent map."""

    @property
    def name(self) -> str: ...
    def forward(
        self, primals: Sequence[Any], active: Sequence[bool]
    ) -> tuple[list[Any], list[Any], "CotangentMap"]: ...


class CotangentMap(Protocol):
    """Maps residuals and cotangents of results to cotangents of arguments; None is zero."""

    @property
    def name(self) -> str: ...
    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]: ...


@record
class Custom(CallLike):
    """A call with a derivative rule. The last `captured` operands are values that the function or its rules close over.

    The rule receives all operands. It raises an error if a value that the function closes over is differentiated.
    """

    opaque = True
    captured: int

    def _vmapped(self, axis: BatchAxis, dims: Sequence[int | None]) -> tuple[Program, tuple[int | None, ...]]:
        """Return the batched program and the batch dims of its results.

        A result with a tangent is always batched at dim 0, because the rule may return a batched tangent for it.
        """
        differentiable = tuple(is_inexact(type.dtype) for type in self.program.out_types)
        return vmap_program(self.program, axis, tuple(dims), everywhere=differentiable)


@final
@record
class CustomJvp(Custom):
    """A function with a derivative rule for forward mode."""

    name = "custom_jvp"
    rule: JvpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.rule.jvp(primals, tangents)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = self._vmapped(axis, dims)
        rule = _MappedJvp(self.rule, axis, tuple(dims), out_dims)
        return CustomJvp(program, self.captured, rule)(*operands), out_dims


@final
@record
class CustomVjp(Custom):
    """A function with a derivative rule for reverse mode."""

    name = "custom_vjp"
    rule: VjpRule

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise forward_mode_error(self.program.name)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return linearize_by_rule(self.rule, primals, tangents, self.program.out_types)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = self._vmapped(axis, dims)
        rule = _MappedVjp(self.rule, axis, tuple(dims), out_dims)
        return CustomVjp(program, self.captured, rule)(*operands), out_dims


def forward_mode_error(name: str) -> TypeError:
    """Return the error for a custom_vjp function that is differentiated in forward mode."""
    return TypeError(
        f"custom_vjp: `{name}` has a rule for reverse mode only: jvp and jacfwd cannot differentiate it. Use grad, vjp "
        "or jacrev, or write it with custom_jvp."
    )


def linearize_by_rule(
    rule: VjpRule,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    out_types: tuple[ArrayType, ...] | None = None,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the results of a custom_vjp function and their tangents.

    Args:
        rule: the function's rule.
        primals: the operands.
        tangents: their tangents, of which at least one is not None.
        out_types: the types of the function's results; None to use the types of the rule's results.
    """
    active = present_mask(tangents)
    results, residuals, backward = rule.forward(primals, active)
    in_types = tuple(x.type for x in primals)
    linear = CustomLin(backward, in_types, out_types or tuple(x.type for x in results), active, len(residuals))
    return results, linear(*residuals, *drop_none(tangents))


@final
@record
class CustomLin(Op):
    """The linear map of a custom_vjp function, of which only the transpose is defined. JAX: custom_lin.

    Operands: residuals, then the tangents of active arguments.
    """

    name = "custom_lin"
    single = False
    accepts_keys = infers_varying = True
    rule: CotangentMap
    in_types: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    active: tuple[bool, ...]
    residuals: int

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        return tuple(type.varying for type in types)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        residuals = operands[: self.residuals]
        if any(isinstance(x, UndefinedPrimal) for x in residuals):
            raise TypeError(f"custom_vjp: `{self.rule.name}` cannot be transposed with respect to its residuals")
        cotangents = self.rule(residuals, cotangent)
        active = (ct for ct, is_active in zip(cotangents, self.active, strict=True) if is_active)
        return (*[None] * self.residuals, *active)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        raise TypeError(
            f"custom_vjp: `{self.rule.name}` has a rule for reverse mode only; its forward derivative cannot run"
        )

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        self.reference()


@final
@record
class _MappedJvp:
    """A JVP rule under vmap. `dims` and `out_dims` are the batch dims of the operands and results."""

    rule: JvpRule
    axis: BatchAxis
    dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        active = present_mask(tangents)
        out_active: tuple[bool, ...] = ()

        def both(*args: Operand) -> list[Any]:
            nonlocal out_active
            results, out_tangents = self.rule.jvp(args[: len(primals)], insert_none(args[len(primals) :], active))
            out_active = present_mask(out_tangents)
            return [*results, *drop_none(out_tangents)]

        # A tangent has the batch dim of its primal.
        dims = (*self.dims, *_masked(self.dims, active))
        outputs, dims_now = _map(both, self.axis, [*primals, *drop_none(tangents)], dims, self.name)
        outputs = _with_batch_dims(outputs, dims_now, (*self.out_dims, *_masked(self.out_dims, out_active)), self.axis)
        count = len(self.out_dims)
        return outputs[:count], insert_none(outputs[count:], out_active)


@final
@record
class _MappedVjp:
    """A VJP rule under vmap. `dims` and `out_dims` are the batch dims of the operands and results."""

    rule: VjpRule
    axis: BatchAxis
    dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    def forward(
        self, primals: Sequence[Any], active: Sequence[bool]
    ) -> tuple[list[Any], list[Any], "_MappedCotangentMap"]:
        backward: CotangentMap | None = None

        def both(*args: Operand) -> list[Any]:
            nonlocal backward
            results, residuals, backward = self.rule.forward(args, active)
            return [*results, *residuals]

        outputs, dims_now = _map(both, self.axis, primals, self.dims, self.name)
        assert backward is not None
        count = len(self.out_dims)
        results = _with_batch_dims(outputs[:count], dims_now, self.out_dims, self.axis)
        mapped = _MappedCotangentMap(backward, self.axis, tuple(dims_now[count:]), self.dims, self.out_dims)
        return results, outputs[count:], mapped


@final
@record
class _MappedCotangentMap:
    """A cotangent map under vmap, with the batch dims of residuals, arguments and results."""

    backward: CotangentMap
    axis: BatchAxis
    residual_dims: tuple[int | None, ...]
    dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]

    @property
    def name(self) -> str:
        return self.backward.name

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        active = present_mask(cotangents)
        nonzero: tuple[bool, ...] = ()

        def back(*args: Operand) -> list[Any]:
            nonlocal nonzero
            out = self.backward(args[: len(residuals)], insert_none(args[len(residuals) :], active))
            nonzero = present_mask(out)
            return drop_none(out)

        dims = (*self.residual_dims, *_masked(self.out_dims, active))
        outputs, dims_now = _map(back, self.axis, [*residuals, *drop_none(cotangents)], dims, self.name)
        # The cotangent of an unbatched argument is the sum over the batch.
        batched = [
            Sum((0,))(batch_dim_at(ct, dim, 0, self.axis.size))
            if target is None
            else batch_dim_at(ct, dim, target, self.axis.size)
            for ct, dim, target in zip(outputs, dims_now, _masked(self.dims, nonzero), strict=True)
        ]
        return insert_none(batched, nonzero)


def _map(
    function: Callable[..., Sequence[Any]], axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], name: str
) -> tuple[list[Any], list[int | None]]:
    """Apply vmap to `function`; call it directly if no argument is batched."""
    if all(dim is None for dim in dims):
        outputs = list(function(*args))
        return outputs, [None] * len(outputs)
    return map_function(function, axis, args, dims, name)


def _masked(dims: Sequence[int | None], mask: Sequence[bool]) -> list[int | None]:
    return [dim for dim, is_marked in zip(dims, mask, strict=True) if is_marked]


def _with_batch_dims(
    values: Sequence[Any], dims: Sequence[int | None], targets: Sequence[int | None], axis: BatchAxis
) -> list[Any]:
    """Move the batch dims of values to `targets`. A target of None drops the batch dim: all slices are equal."""
    out = []
    for x, dim, target in zip(values, dims, targets, strict=False):
        if target is not None:
            out.append(batch_dim_at(x, dim, target, axis.size))
        elif dim is None:
            out.append(x)
        else:
            out.append(Reshape(x.type.without((dim,)).shape)(slice_along(x, dim, 0, 1)))
    return out
