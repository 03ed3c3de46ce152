"""linear_call: a linear function with a transpose of the user's (`custom_derivatives.linear_call`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from shardwise.compiler.control.call import Call, CallLike
from shardwise.compiler.ir.op import BatchAxis, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.provenance import current_source, provenance
from shardwise.compiler.transforms.replay import restore_source
from shardwise.compiler.transforms.vmap import vmap_program


@final
@record
class LinearCall(CallLike):
    """Call `program`, which is linear in all operands but the first `residuals`. Its transpose calls `transposed`.

    The inputs of `transposed` are the same residuals and the cotangents of the results of `program`.

    Attributes:
        program: the function.
        residuals: the number of operands in which it is not linear.
        transposed: its transpose.
        residual_scope: the named scope of derivatives with respect to residuals, which are those of `program`; "" if
            such derivatives are an error.
    """

    name = "linear_call"
    opaque = True
    residuals: int
    transposed: Program
    residual_scope: str = ""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if any(tangent is not None for tangent in tangents[: self.residuals]):
            if self.residual_scope:
                with self._in_residual_scope():
                    return Call(self.program).jvp(primals, tangents)
            raise NotImplementedError(
                f"linear_call: `{self.program.name}` is differentiated with respect to a residual argument or a value "
                "that it closes over, in which it is not linear. Pass the value in linear_args, or apply "
                "`stop_gradient` to it."
            )
        types = self.program.in_types[self.residuals :]
        pairs = zip(tangents[self.residuals :], types, strict=True)
        linear = [_or_zeros(tangent, type) for tangent, type in pairs]
        return self(*primals), self(*primals[: self.residuals], *linear)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if self.residual_scope and any(tangent is not None for tangent in tangents[: self.residuals]):
            with self._in_residual_scope():
                return Call(self.program).linearize(primals, tangents)
        return super().linearize(primals, tangents)

    @contextmanager
    def _in_residual_scope(self) -> Iterator[None]:
        place = current_source().place
        with restore_source():
            provenance.source = current_source().within((self.residual_scope,))
            try:
                yield
            except (NotImplementedError, TypeError, ValueError) as error:
                raise NotImplementedError(
                    f"{self.residual_scope} at {place} needs the derivative of `{self.program.name}`, and an op of it "
                    f"has none. {error}"
                ) from error

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        types = self.transposed.in_types[self.residuals :]
        cotangents = [_or_zeros(ct, type) for ct, type in zip(cotangent, types, strict=True)]
        op = replace(self, program=self.transposed, transposed=self.program)
        return (*(None,) * self.residuals, *op(*operands[: self.residuals], *cotangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Map linear operands and results along dim 0, and residuals along their own dims."""
        residual_dims = tuple(dims[: self.residuals])
        program, transposed = (_mapped(held, axis, residual_dims) for held in (self.program, self.transposed))
        linear = [
            batch_dim_at(x, dim, 0, axis.size)
            for x, dim in zip(operands[self.residuals :], dims[self.residuals :], strict=True)
        ]
        op = replace(self, program=program, transposed=transposed)
        return op(*operands[: self.residuals], *linear), [0] * len(program.outputs)


def _mapped(program: Program, axis: BatchAxis, residual_dims: tuple[int | None, ...]) -> Program:
    """Return the mapped program, whose linear operands and results are mapped along dim 0."""
    linear_dims = (0,) * (len(program.inputs) - len(residual_dims))
    mapped, out_dims = vmap_program(program, axis, (*residual_dims, *linear_dims), everywhere=True)

    def body(*operands: Operand) -> list[Any]:
        results = Call(mapped)(*operands)
        return [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(results, out_dims, strict=True)]

    return mapped if all(dim == 0 for dim in out_dims) else rewrite(mapped.name, mapped.in_types, body)


def _or_zeros(x: Operand | None, type: ArrayType) -> Any:
    return zeros_of(type) if x is None else match_type(x, type)
