"""linear_solve: the solution of a linear system by a program that the user has written, with the derivative that every
solution has.

With A the map `matvec`: of A x = b it is A dx = db - dA x, one more solution of the same system; the transpose of the
solution is the solution of the transposed system.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, UndefinedPrimal
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call, drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.retype import match_type, zeros_of
from shardwise.compiler.ops.elementwise.arithmetic import Neg, Sub
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at


@final
@record
class LinearSolve(Op):
    """The results of `solve`: `count` arrays that solve the system, and others that have no derivative.

    Every program takes `count` arrays and the values that it closes over. Operands: b, and then the values of
    `matvec`, of `solve`, of `vecmat` and of `transpose_solve`. The last two are for the transposed system, if known.
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
        """What takes the op's place: the solution, of all operands."""
        values = [program.in_types[self.count :] for program in self._held if program is not None]
        types = [*self.solve.in_types[: self.count], *(type for types in values for type in types)]

        def body(*operands: Any) -> Any:
            b, (_, values, *_) = self._parts(operands)
            return Call(self.solve)(*b, *values)

        return (installed.transforms.rewrite(self.solve.name, types, body),)

    @property
    def _held(self) -> tuple[Program | None, ...]:
        return self.matvec, self.solve, self.vecmat, self.transpose_solve

    def _parts(self, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """b, and what each of the four programs closes over."""
        found, start = [], self.count
        for program in self._held:
            stop = start + (0 if program is None else len(program.inputs) - self.count)
            found.append(list(operands[start:stop]))
            start = stop
        return list(operands[: self.count]), found

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (program,) = self.programs
        if types != program.in_types:
            raise TypeError(f"linear_solve: {self.solve.name} takes {program.in_types}, not {types}")
        return self.solve.out_types

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        return tuple(type.varying for type in self.programs[0].in_types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """`linearize` gets no other: the work on primals is apart from that on tangents."""
        (_, values), (right, moving) = self._parts(primals), self._parts(tangents)
        results = self(*primals)
        if any(tangent is not None for tangent in moving[0]):
            active = (*(False,) * self.count, *present_mask(moving[0]))
            forward, linear, reached = installed.transforms.linearize(self.matvec, active)
            residuals = Call(forward)(*results[: self.count], *values[0])[self.count :]
            pushed = insert_none(Call(linear)(*residuals, *drop_none(moving[0])), reached)
            right = [_difference(db, moved) for db, moved in zip(right, pushed, strict=True)]
        if all(db is None for db in right):
            return results, [None] * len(results)
        b = [_present(db, x.type) for db, x in zip(right, results, strict=False)]
        moved = self._bare(*b, *(x for part in values for x in part))
        return results, [*moved, *(None,) * (len(results) - self.count)]

    @property
    def _bare(self) -> "LinearSolve":
        """The solution alone: a linear op, all of whose results depend on b."""
        solve, transpose_solve = (
            None if program is None else replace(program, outputs=program.outputs[: self.count])
            for program in (self.solve, self.transpose_solve)
        )
        assert solve is not None
        return LinearSolve(self.count, self.matvec, solve, self.vecmat, transpose_solve)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        b, values = self._parts(operands)
        known = [x for part in values for x in part]
        if any(isinstance(x, UndefinedPrimal) for x in known) or self.vecmat is None or self.transpose_solve is None:
            raise TypeError(
                "custom_linear_solve: no transpose_solve was given, and reverse mode solves the transposed system: "
                "give one, or say that the system is symmetric"
            )
        op = LinearSolve(self.count, self.vecmat, self.transpose_solve, self.matvec, self.solve)
        matvec, solve, vecmat, transpose_solve = values
        right = [_present(ct, x.type) for ct, x in zip(cotangent, b, strict=False)]
        found = op._bare(*right, *vecmat, *transpose_solve, *matvec, *solve)
        return (*found, *[None] * len(known))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """The right sides and the solutions have the batch at dim 0; what programs close over, where it is."""
        at_b, places = self._parts(dims)
        programs = [
            None if program is None else self._mapped(program, axis, at)
            for program, at in zip(self._held, places, strict=True)
        ]
        matvec, solve, *transposed = programs
        assert matvec is not None
        assert solve is not None
        b = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, at_b, strict=False)]
        op = LinearSolve(self.count, matvec, solve, *transposed)
        return op(*b, *operands[self.count :]), [0] * len(self.solve.outputs)

    def _mapped(self, program: Program, axis: BatchAxis, dims: Sequence[int | None]) -> Program:
        program, places = installed.transforms.vmap(program, axis, (*(0,) * self.count, *dims), everywhere=True)
        types = program.in_types

        def body(*operands: Any) -> list[Any]:
            results = Call(program)(*operands)
            return [batch_dim_at(x, place, 0, axis.size) for x, place in zip(results, places, strict=True)]

        is_there = all(place == 0 for place in places)
        return program if is_there else installed.transforms.rewrite(program.name, types, body)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(self.programs[0], operands)


def _difference(x: Any, y: Any) -> Any:
    """`x - y`, of which None is zero."""
    if x is None or y is None:
        return x if y is None else Neg()(y)
    return Sub()(x, y)


def _present(x: Any, type: ArrayType) -> Any:
    return zeros_of(type) if x is None else match_type(x, type)
