"""scan: run a program a known number of times, with a carry, slices of operands, and stacked results."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.control_rules import ControlRules
from shardwise.compiler.control.region_boundary import Carry, Enter, Stack, Unstack
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.control import Binding, KeyTracker, entry, exit_, operand, result
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    NumpyArray,
    Op,
    Primal,
    ProgramRunner,
    Shards,
    UndefinedPrimal,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.movement import i64_array_attribute
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline, is_transparent_call
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.shrink_residuals import shrink_loop_residuals
from shardwise.compiler.transforms.transpose import transpose_program

COUNTER = ArrayType((), np.int32)


@final
@record
class Scan(ControlRules):
    """Run `program` (consts, carry, slices → carry, stacked outputs) `length` times.

    Operands: consts, the initial carry, arrays that are sliced along dim 0. Results: the final carry, arrays stacked
    along a new dim 0. `consts` and `carried` are the numbers of consts and carries. `reverse` iterates from the last
    slice to the first. `unroll` is the number of iterations per iteration of XLA's loop.
    """

    name = "scan"
    program: Program
    length: int
    consts: int
    carried: int
    reverse: bool = False
    unroll: int = 1

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def trip_count(self) -> int | None:
        return self.length

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        first, after = self.consts, self.consts + self.carried
        return (
            *(Binding(0, Enter(1), (operand(i),), (entry(i),)) for i in range(first)),
            *(
                Binding(1, Carry(2), (operand(first + i), exit_(i)), (entry(first + i), result(i)))
                for i in range(self.carried)
            ),
            *(
                Binding(2, Unstack(self.length), (operand(i),), (entry(i),))
                for i in range(after, len(self.program.inputs))
            ),
            *(
                Binding(3, Stack(self.length), (exit_(i),), (result(i),))
                for i in range(self.carried, len(self.program.outputs))
            ),
        )

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((0, (0,)),)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Scan":
        (program,) = programs
        consts, carried = (self.consts, self.carried) if counts is None else [*counts, 0, 0][:2]
        return replace(self, program=program, consts=consts, carried=carried)

    def split_operands(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split the operands, or a list parallel to them, into consts, carry, and arrays that are sliced."""
        after = self.consts + self.carried
        return list(operands[: self.consts]), list(operands[self.consts : after]), list(operands[after:])

    @property
    def _carry_operands(self) -> range:
        """The indices of the operands that are the initial carry."""
        return range(self.consts, self.consts + self.carried)

    @property
    def stack_length(self) -> int | None:
        return self.length

    def track_keys(
        self, uses: KeyTracker, operands: list[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None]:
        """Check two iterations, which represent all."""
        consts, carry, stacks = self.split_operands(operands)
        stacked = self.split_operands(self.program.in_types)[2]
        for index in range(min(self.length, 2)):
            at = self.length - 1 - index if self.reverse else index
            slices = [x[at] if is_key(type.dtype) else None for x, type in zip(stacks, stacked, strict=True)]
            carry = uses.run(self.program, [*consts, *carry, *slices])[: self.carried]
            carry = [x if is_key(type.dtype) else None for x, type in zip(carry, types, strict=False)]
        for keys, type in zip(stacks, stacked, strict=True):  # all iterations use the same keys of their slices
            if is_key(type.dtype) and self.length and (source := uses.used_at(keys[-1 if self.reverse else 0].flat[0])):
                for key in keys.flat:
                    uses.mark(key, source)
        new = [uses.new_keys(type.shape) if is_key(type.dtype) else None for type in types[self.carried :]]
        return [*carry, *new]

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        consts, carry, sliced = self.split_operands(operands)
        outputs_by_step: list[list[list[NumpyArray]]] = []
        steps = range(self.length)
        for step in reversed(steps) if self.reverse else steps:
            slices = [[shard[step] for shard in shards] for shards in sliced]
            outputs = run(0, [*consts, *carry, *slices])
            carry = outputs[: self.carried]
            outputs_by_step.append(outputs[self.carried :])
        rows = outputs_by_step[::-1] if self.reverse else outputs_by_step
        stacks = []
        for index, value in enumerate(self.program.outputs[self.carried :]):
            empty = np.zeros((0, *value.type.shape), value.type.dtype)
            stacks.append([np.stack([row[index][d] for row in rows]) if rows else empty for d in range(devices)])
        return [*carry, *stacks]

    # Linearization. The forward loop computes the results and stacks residuals; the linear loop maps tangents.

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = self.active_bindings(tangents, linearizing=True)
        forward, linear, _ = linearize_program(
            self.program, self.endpoint_marks(active, "entry"), self.endpoint_marks(active, "exit")
        )
        forward = inline(forward, is_transparent_call)  # opaque calls keep their rules for the next derivative
        forward, linear = shrink_loop_residuals(
            forward, linear, len(self.program.outputs), self._free_residuals(forward)
        )
        computed = _ComputedResiduals.from_scan(self, forward)
        invariants = Call(computed.invariant)(*primals[: self.consts]) if computed.invariant.outputs else ()
        results = self._forward_loop(forward, computed)(*invariants, *primals)
        consts, slices = self._bind_residuals(forward, linear, computed, primals, invariants, results)
        out_tangents = self._linear_loop(linear, active, consts, slices, primals, tangents)
        return results[: len(self.program.outputs)], out_tangents

    def _free_residuals(self, forward: Program) -> set[Value]:
        """Return the operands that the linear loop receives without stacking, and values that depend on these alone."""
        consts, _, slices = self.split_operands(forward.inputs)
        equations = _computable(forward.equations, [*consts, *slices])
        stacked = forward.outputs[self.carried : len(self.program.outputs)]
        return {*consts, *slices, *stacked, *(value for equation in equations for value in equation.outputs)}

    def _forward_loop(self, forward: Program, computed: "_ComputedResiduals") -> "Scan":
        """Build the loop that returns results and stacks residuals. Loop-invariant residuals are its first consts."""
        count = len(self.program.outputs)
        inputs = [Value(type) for type in computed.invariant.out_types]
        consts = dict(zip(computed.invariant.outputs, inputs, strict=True))
        equations = [
            equation.replace(inputs=[consts.get(value, value) for value in equation.inputs])
            for equation in forward.equations
            if not equation.outputs or not consts.keys() >= set(equation.outputs)
        ]
        body = replace(
            forward,
            inputs=(*inputs, *forward.inputs),
            equations=tuple(equations),
            outputs=(*(consts.get(value, value) for value in forward.outputs[:count]), *computed.stacked),
        )
        return replace(self, program=dce(body), consts=len(inputs) + self.consts)

    def _bind_residuals(
        self,
        forward: Program,
        linear: Program,
        computed: "_ComputedResiduals",
        primals: Sequence[Any],
        invariants: Sequence[Any],
        results: Sequence[Any],
    ) -> tuple[list["_Bound"], list["_Bound"]]:
        """Bind the residual inputs of `linear` to the arrays that hold them, as consts or as sliced arrays.

        Args:
            forward: the forward program; its outputs after the results are the residuals.
            linear: the linear program; its first inputs are the residuals.
            computed: the residuals that the forward loop computes.
            primals: the operands of the scan.
            invariants: the values of the loop-invariant residuals.
            results: the results of the forward loop; the stacked residuals follow the results of the scan.
        """
        count = len(self.program.outputs)
        invariant = dict(zip(computed.invariant.outputs, invariants, strict=True))
        stacked = dict(zip(computed.stacked, results[count:], strict=True))
        consts: list[_Bound] = []
        slices: list[_Bound] = []
        for value, inside in zip(forward.outputs[count:], linear.inputs, strict=False):
            if value in invariant:
                consts.append(_Bound(inside, invariant[value]))
            elif value in forward.inputs[: self.consts]:
                consts.append(_Bound(inside, primals[forward.inputs.index(value)]))
            elif value in stacked:
                slices.append(_Bound(inside, stacked[value]))
            elif value in forward.outputs[self.carried : count]:
                slices.append(_Bound(inside, results[forward.outputs.index(value, self.carried)]))
            else:
                slices.append(_Bound(inside, primals[forward.inputs.index(value)]))
        return consts, slices

    def _linear_loop(
        self,
        linear: Program,
        active: Sequence[bool],
        consts: Sequence["_Bound"],
        slices: Sequence["_Bound"],
        primals: Sequence[Any],
        tangents: Sequence[Any],
    ) -> list[Any]:
        """Run the loop that maps tangents. Return the tangents of the results; None is zero.

        Args:
            linear: the program: residuals, tangents → tangents.
            active: for each binding of the scan, whether it has a tangent.
            consts, slices: the residuals, as `_bind_residuals` returns them.
            primals, tangents: the primals and tangents of the operands.
        """
        residual_count = len(consts) + len(slices)
        inputs = insert_none(linear.inputs[residual_count:], self.endpoint_marks(active, "entry"))
        const_inputs, carry_inputs, slice_inputs = map(drop_none, self.split_operands(inputs))
        const_tangents, carry_tangents, slice_tangents = map(
            drop_none, self.split_operands(self.instantiate_tangents(active, primals, tangents))
        )
        body = replace(
            linear,
            inputs=(
                *(bound.value for bound in consts),
                *const_inputs,
                *carry_inputs,
                *(bound.value for bound in slices),
                *slice_inputs,
            ),
        )
        loop = replace(self, program=body, consts=len(consts) + len(const_inputs), carried=len(carry_inputs))
        out_tangents = loop(
            *(bound.array for bound in consts),
            *const_tangents,
            *carry_tangents,
            *(bound.array for bound in slices),
            *slice_tangents,
        )
        return insert_none(out_tangents, self.endpoint_marks(active, "result"))

    # Transposition. The loop runs backwards, carries the cotangents of the carry, and sums the cotangents of consts.

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        if any(equation.op.is_call and not equation.op.opaque for equation in self.program.equations):
            # Inline calls, so that the analysis distinguishes known and linear values inside them.
            inlined = inline(self.program, is_transparent_call)
            return self.with_programs([inlined]).transpose(cotangent, *operands)
        undefined = [isinstance(x, UndefinedPrimal) for x in operands]
        dependent = self.endpoint_marks(
            self.propagate_marks(undefined, lambda n, entries: self.program.outputs_depending_on(entries)), "operand"
        )
        if not all(self.split_operands(dependent)[1]):
            return self._transpose_known_carry(cotangent, operands, dependent)
        # A carry with a known initial value is linear too, because that value is zero.
        linear = tuple(x or index in self._carry_operands for index, x in enumerate(undefined))
        consts, carry, sliced = self.split_operands(operands)
        nonzero = (*[True] * self.carried, *present_mask(cotangent[self.carried :]))
        backward, nonzero_consts, nonzero_slices = self._backward_program(linear, nonzero)
        const_types = [cotangent_type(x.type) for x in consts if isinstance(x, UndefinedPrimal)]
        sum_types = [type for type, is_nonzero in zip(const_types, nonzero_consts, strict=True) if is_nonzero]
        known_consts = [x for x in consts if not isinstance(x, UndefinedPrimal)]
        known_slices = [x for x in sliced if not isinstance(x, UndefinedPrimal)]
        final = [
            zeros_of(cotangent_type(x.type)) if ct is None else ct for x, ct in zip(carry, cotangent, strict=False)
        ]
        first, after = len(sum_types), len(sum_types) + self.carried
        loop = Scan(backward, self.length, len(known_consts), after, not self.reverse, self.unroll)
        sums = map(zeros_of, sum_types)
        results = loop(*known_consts, *sums, *final, *known_slices, *drop_none(cotangent[self.carried :]))
        const_cts, carry_cts, slice_cts = results[:first], results[first:after], results[after:]
        const_linear, _, slice_linear = self.split_operands(linear)
        return (
            *insert_none(insert_none(const_cts, nonzero_consts), const_linear),
            *carry_cts,
            *insert_none(insert_none(slice_cts, nonzero_slices), slice_linear),
        )

    def _transpose_known_carry(
        self, cotangent: Sequence[Operand | None], operands: Sequence[Any], linear: Sequence[bool]
    ) -> tuple[Any, ...]:
        """Transpose a scan in which part of the carry, such as a counter, is known.

        A first loop computes the known part and stacks it. In the transposed loop, it is a sliced operand.
        """
        program = self.program
        known = [number for number in self._carry_operands if not linear[number]]
        known_inputs = [program.inputs[number] for number in known]
        known_outputs = [program.outputs[number - self.consts] for number in known]
        inputs = tuple(value for value, is_linear in zip(program.inputs, linear, strict=True) if not is_linear)
        first_body = replace(
            program,
            inputs=inputs,
            equations=_computable(program.equations, inputs),
            outputs=(*known_outputs, *known_inputs),
        )
        first = Scan(
            dce(first_body),
            self.length,
            linear[: self.consts].count(False),
            len(known),
            self.reverse,
        )
        results = first(*(x for x, is_linear in zip(operands, linear, strict=True) if not is_linear))
        stacked = results[len(known) :]
        kept = [number for number in range(len(operands)) if number not in known]
        body = replace(
            program,
            inputs=(*(program.inputs[number] for number in kept), *known_inputs),
            outputs=tuple(v for n, v in enumerate(program.outputs) if n + self.consts not in known),
        )
        second = replace(self, program=body, carried=self.carried - len(known))
        cotangents = second.transpose(
            [ct for n, ct in enumerate(cotangent) if n + self.consts not in known],
            *(operands[number] for number in kept),
            *stacked,
        )
        by_operand: dict[int, Any] = dict(zip(kept, cotangents, strict=False))
        return tuple(by_operand.get(number) for number in range(len(operands)))

    def _backward_program(
        self, linear: tuple[bool, ...], nonzero: tuple[bool, ...]
    ) -> tuple[Program, tuple[bool, ...], tuple[bool, ...]]:
        """Build the body of the backward loop.

        Its inputs are known consts, sums of cotangents of linear consts, cotangents of the carry, known slices, and
        cotangents of stacked results. Its outputs are the sums, the cotangents of the carry, and the cotangents of
        slices.

        Args:
            linear: which operands are linear.
            nonzero: which results have a cotangent.

        Returns:
            The program, which linear consts have a cotangent, and which linear slices have one.
        """
        const_linear, _, slice_linear = self.split_operands(linear)
        linear_consts = const_linear.count(True)
        instantiate = (*[False] * linear_consts, *[True] * self.carried, *[False] * slice_linear.count(True))
        transposed, out_nonzero = transpose_program(self.program, linear, nonzero, instantiate)
        nonzero_consts = out_nonzero[:linear_consts]
        nonzero_slices = out_nonzero[linear_consts + self.carried :]
        const_types, carry_types, slice_types = self.split_operands(self.program.in_types)
        known_consts = [t for t, is_linear in zip(const_types, const_linear, strict=True) if not is_linear]
        linear_types = [cotangent_type(t) for t, is_linear in zip(const_types, const_linear, strict=True) if is_linear]
        sums = [t for t, is_nonzero in zip(linear_types, nonzero_consts, strict=True) if is_nonzero]
        known_slices = [t for t, is_linear in zip(slice_types, slice_linear, strict=True) if not is_linear]
        carry_types = list(map(cotangent_type, carry_types))
        stacked_types = list(map(cotangent_type, self.program.out_types[self.carried :]))
        arriving = [t for t, is_nonzero in zip(stacked_types, nonzero[self.carried :], strict=True) if is_nonzero]

        def body(*args: Operand) -> list[Any]:
            rest = iter(args)
            consts, totals, carry, slices, cotangents = (
                [next(rest) for _ in types] for types in (known_consts, sums, carry_types, known_slices, arriving)
            )
            out_cotangents = Call(transposed)(*consts, *slices, *carry, *cotangents)
            new_totals = [Add()(total, more) for total, more in zip(totals, out_cotangents, strict=False)]
            return [*new_totals, *out_cotangents[len(sums) :]]

        in_types = [*known_consts, *sums, *carry_types, *known_slices, *arriving]
        program = rewrite(f"transpose_{self.program.name}", in_types, body)
        return program, nonzero_consts, nonzero_slices

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        consts, start, sliced = self.split_operands(operands)
        stacks = [hlo.constant(0, type) for type in self.out_types(*(x.type for x in operands))[self.carried :]]
        if not self.length:
            return [*start, *stacks]
        unroll = max(1, min(self.unroll, self.length))
        width = len(start)

        def iteration(counter: HloValue, state: Sequence[Any]) -> list[Any]:
            index = counter
            if self.reverse:
                index = hlo.op("stablehlo.subtract", (hlo.constant(self.length - 1, COUNTER), counter), COUNTER)
            slices = [slice_at(hlo, x, index) for x in sliced]
            outputs = hlo.program(self.program, [*consts, *state[:width], *slices])
            written = [update_at(hlo, x, y, index) for x, y in zip(state[width:], outputs[width:], strict=True)]
            return [*outputs[:width], *written]

        def unrolled(values: Sequence[Any]) -> list[Any]:
            counter, *state = values
            for _ in range(unroll):
                state = iteration(counter, state)
                counter = hlo.op("stablehlo.add", (counter, hlo.constant(1, COUNTER)), COUNTER)
            return [counter, *state]

        in_loop = self.length // unroll * unroll
        values: list[Any] = [hlo.constant(0, COUNTER), *start, *stacks]
        if in_loop == unroll:
            values = unrolled(values)
        else:
            ordered = self.effect == "ordered"
            values = hlo.loop(
                values,
                lambda state: lower_compare(hlo, "LT", state[0], hlo.constant(in_loop, COUNTER)),
                unrolled,
                ordered,
            )
        for number in range(in_loop, self.length):
            values[1:] = iteration(hlo.constant(number, COUNTER), values[1:])
        return values[1:]


def vmap_by_scan(op: Op, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    """Apply `vmap` to an op that returns a tuple, by a scan over the batch dim: one batch element at a time."""
    batched = [dim is not None for dim in dims]
    consts = [x for x, dim in zip(operands, dims, strict=True) if dim is None]
    sliced = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True) if dim is not None]

    def body(*args: Operand) -> Sequence[Any]:
        rest, slices = iter(args[: len(consts)]), iter(args[len(consts) :])
        return op(*(next(slices) if is_batched else next(rest) for is_batched in batched))  # type: ignore[no-any-return]

    types = [*(x.type for x in consts), *(x.type.without((0,)) for x in sliced)]
    program = rewrite(f"each_{op.name}", types, body)
    results = Scan(program, axis.size, len(consts), 0)(*consts, *sliced)
    return results, [0] * len(results)


class _Bound(NamedTuple):
    """An input of a loop's body, and the array that it is bound to."""

    value: Value
    array: Any


class _ComputedResiduals(NamedTuple):
    """The residuals that a scan's forward loop must compute for its derivative.

    Residuals that are consts, slices or stacked results exist in any case; they are not listed here.

    Attributes:
        invariant: a program that computes the loop-invariant residuals from the consts, before the loop.
        stacked: the residuals that the loop stacks.
    """

    invariant: Program
    stacked: tuple[Value, ...]

    @staticmethod
    def from_scan(scan: Scan, forward: Program) -> "_ComputedResiduals":
        count = len(scan.program.outputs)
        consts = forward.inputs[: scan.consts]
        slices = forward.inputs[scan.consts + scan.carried :]
        available = {*consts, *slices, *forward.outputs[scan.carried : count]}
        equations = _computable([equation for equation in forward.equations if not equation.op.effect], consts)
        invariant = {value for equation in equations for value in equation.outputs}
        residuals = [value for value in dict.fromkeys(forward.outputs[count:]) if value not in available]
        outputs = tuple(value for value in residuals if value in invariant)
        program = Program(consts, equations, outputs, f"before_{forward.name}")
        return _ComputedResiduals(dce(program), tuple(value for value in residuals if value not in invariant))


def _computable(equations: Sequence[Equation], inputs: Sequence[Value]) -> tuple[Equation, ...]:
    """Return the equations that depend on these inputs alone."""
    known = set(inputs)
    computable = []
    for equation in equations:
        if known.issuperset(equation.inputs):
            known.update(equation.outputs)
            computable.append(equation)
    return tuple(computable)


def slice_at(hlo: Hlo, x: HloValue, index: HloValue) -> Any:
    """Lower x[index]."""
    zero = hlo.constant(0, COUNTER)
    sizes = (1, *x.type.shape[1:])
    row = hlo.op(
        "stablehlo.dynamic_slice",
        (x, index, *[zero] * (x.type.ndim - 1)),
        x.type.with_shape(sizes),
        f"slice_sizes = {i64_array_attribute(sizes)}",
    )
    return hlo.op("stablehlo.reshape", (row,), x.type.without((0,)))


def update_at(hlo: Hlo, x: HloValue, y: HloValue, index: HloValue) -> Any:
    """Lower x.at[index].set(y)."""
    zero = hlo.constant(0, COUNTER)
    row = hlo.op("stablehlo.reshape", (y,), y.type.with_shape((1, *y.type.shape)))
    return hlo.op("stablehlo.dynamic_update_slice", (x, row, index, *[zero] * (x.type.ndim - 1)), x.type)
