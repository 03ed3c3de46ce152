"""linear_solve: a linear system solved by the user's program, differentiated implicitly (`lax.custom_linear_solve`).

Let A be the linear map `matvec`. The tangent of the solution of A x = b solves A dx = db - dA x, which is the same
system with another right-hand side. The transpose of the op solves the transposed system.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, final

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Neg, Sub
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.vmap import vmap_program


@final
@record
class LinearSolve(Op):
    """Call `solve`, which returns `count` arrays that solve the system, and auxiliary arrays, which have no derivative.

    The inputs of every program are `count` arrays and the values that it closes over. The operands of the op are b, and
    then the closed-over values of `matvec`, `solve`, `vecmat` and `transpose_solve`. The last two define the transposed
    system; they may be None.
    """

    name = "linear_solve"
    single = False
    is_call = opaque = infers_varying = True
    count: int
    matvec: Program
    solve: Program
    vecmat: Program | None = None
    transpose_solve: Program | None = None

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The program that replaces the op on inlining: `solve`, as a function of all operands."""
        values = [program.in_types[self.count :] for program in self._all_programs if program is not None]
        types = [*self.solve.in_types[: self.count], *(type for types in values for type in types)]

        def body(*operands: Operand) -> Any:
            b, (_, values, *_) = self._split_operands(operands)
            return Call(self.solve)(*b, *values)

        return (rewrite(self.solve.name, types, body),)

    @property
    def _all_programs(self) -> tuple[Program | None, ...]:
        return self.matvec, self.solve, self.vecmat, self.transpose_solve

    def _split_operands(self, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Split operands into b and the closed-over values of each of the four programs."""
        values, start = [], self.count
        for program in self._all_programs:
            stop = start + (0 if program is None else len(program.inputs) - self.count)
            values.append(list(operands[start:stop]))
            start = stop
        return list(operands[: self.count]), values

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (program,) = self.programs
        if types != program.in_types:
            raise TypeError(f"linear_solve: {self.solve.name} expects operands {program.in_types}, not {types}")
        return self.solve.out_types

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        return tuple(type.varying for type in self.programs[0].in_types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Solve the system for the tangents. `linearize` uses this rule too: it separates primals from tangents."""
        (_, values), (db, value_tangents) = self._split_operands(primals), self._split_operands(tangents)
        results = self(*primals)
        matvec_tangents = value_tangents[0]
        if any(tangent is not None for tangent in matvec_tangents):
            active = (*(False,) * self.count, *present_mask(matvec_tangents))
            forward, linear, has_tangent = linearize_program(self.matvec, active)
            residuals = Call(forward)(*results[: self.count], *values[0])[self.count :]
            da_x = insert_none(Call(linear)(*residuals, *drop_none(matvec_tangents)), has_tangent)
            db = [_subtract(x, y) for x, y in zip(db, da_x, strict=True)]
        if all(tangent is None for tangent in db):
            return results, [None] * len(results)
        right_side = [_or_zeros(tangent, x.type) for tangent, x in zip(db, results, strict=False)]
        dx = self._without_auxiliary(*right_side, *(x for closed_over in values for x in closed_over))
        return results, [*dx, *(None,) * (len(results) - self.count)]

    @property
    def _without_auxiliary(self) -> "LinearSolve":
        """The op without auxiliary results, so that all results are linear in b."""
        solve, transpose_solve = (
            None if program is None else replace(program, outputs=program.outputs[: self.count])
            for program in (self.solve, self.transpose_solve)
        )
        assert solve is not None
        return LinearSolve(self.count, self.matvec, solve, self.vecmat, transpose_solve)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        b, values = self._split_operands(operands)
        flat = [x for closed_over in values for x in closed_over]
        if any(isinstance(x, UndefinedPrimal) for x in flat) or self.vecmat is None or self.transpose_solve is None:
            raise TypeError(
                "custom_linear_solve: no transpose_solve was given, but reverse mode solves the transposed system; "
                "pass transpose_solve=, or symmetric=True if the system is symmetric"
            )
        op = LinearSolve(self.count, self.vecmat, self.transpose_solve, self.matvec, self.solve)
        matvec, solve, vecmat, transpose_solve = values
        right_side = [_or_zeros(ct, x.type) for ct, x in zip(cotangent, b, strict=False)]
        cotangents = op._without_auxiliary(*right_side, *vecmat, *transpose_solve, *matvec, *solve)
        return (*cotangents, *[None] * len(flat))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Map right-hand sides and solutions along dim 0, and closed-over values along their own dims."""
        b_dims, value_dims = self._split_operands(dims)
        programs = [
            None if program is None else self._vmap_program(program, axis, closed_over_dims)
            for program, closed_over_dims in zip(self._all_programs, value_dims, strict=True)
        ]
        matvec, solve, *transposed = programs
        assert matvec is not None
        assert solve is not None
        b = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, b_dims, strict=False)]
        op = LinearSolve(self.count, matvec, solve, *transposed)
        return op(*b, *operands[self.count :]), [0] * len(self.solve.outputs)

    def _vmap_program(self, program: Program, axis: BatchAxis, dims: Sequence[int | None]) -> Program:
        program, out_dims = vmap_program(program, axis, (*(0,) * self.count, *dims), everywhere=True)
        types = program.in_types

        def body(*operands: Operand) -> list[Any]:
            results = Call(program)(*operands)
            return [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(results, out_dims, strict=True)]

        return program if all(dim == 0 for dim in out_dims) else rewrite(program.name, types, body)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(self.programs[0], operands)


def _subtract(x: Operand | None, y: Operand | None) -> Any:
    """Return `x - y`, where None means zero."""
    if x is None or y is None:
        return x if y is None else Neg()(y)
    return Sub()(x, y)


def _or_zeros(x: Operand | None, type: ArrayType) -> Any:
    return zeros_of(type) if x is None else match_type(x, type)
