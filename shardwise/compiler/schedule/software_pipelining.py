"""Software pipelining of loops: overlap the communication of an iteration with the compute of its neighbours.

A loop over layers gathers a layer's weights, computes, and reduces the layer's gradients. The gathers depend only on
slices of arguments, so those of the next iteration can overlap with this iteration's kernels. Nothing in the loop
depends on the reduced gradients, so their reduction can overlap with the next iteration's kernels. Memory grows by the
gathered weights and the unreduced gradients of one iteration.
"""

from collections.abc import Iterable

from shardwise.compiler.control.pipelined_scan import PipelinedScan
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.schedule.kernel_graph import is_movable
from shardwise.compiler.schedule.remat_prefetch import are_remat_barriers
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline_copy

MIN_TRIP_COUNT = 4  # of a shorter loop, most iterations would be in the prologue and the epilogue


def software_pipeline(local: LocalProgram, equation: Equation) -> Equation:
    """Return a scan as a PipelinedScan; the equation itself if no collective can move to another iteration."""
    op = equation.op
    if not isinstance(op, Scan) or op.length < MIN_TRIP_COUNT or op.unroll > 1 or op.effect:
        return equation
    loop = _Loop(local, op)
    if not loop.gathers and not loop.reductions:
        return equation
    # XLA receives the body of a pipelined loop up to five times, and that of a nested one 25 times. The innermost loop
    # has the most iterations.
    if any(software_pipeline(local, inner) is not inner for inner in op.program.walk()):
        return equation
    pipelined, order = loop.pipelined()
    return equation.replace(op=pipelined, outputs=[equation.outputs[index] for index in order])


class _Loop:
    """A scan whose body is split into the three stages of a PipelinedScan.

    Attributes:
        gathers: the collectives that depend only on consts and slices.
        reductions: the collectives whose results only reach stacked results, through short kernels.
        after_reductions: the equations between the reductions and the stacked results.
    """

    def __init__(self, local: LocalProgram, op: Scan):
        self.local = local
        self.op = op
        self.body = op.program
        self.gathers = self._find_gathers()
        self.reductions, self.after_reductions = self._find_reductions()

    def _find_gathers(self) -> list[Equation]:
        consts, _, slices = self.op.split_operands(self.body.inputs)
        early = set(consts) | set(slices)  # values that do not depend on the carry
        varying = set(slices)
        gathers = []
        for group in issue_groups(self.body):
            inputs = {value for equation in group for value in equation.inputs}
            if not are_remat_barriers(group) and not early.issuperset(inputs):
                continue
            for equation in group:
                if not early.issuperset(equation.inputs):
                    continue
                varies = not varying.isdisjoint(equation.inputs)
                if self.local.bytes_sent(equation):
                    gathers += [equation] if varies else []
                elif is_movable(self.local, equation):
                    early.update(equation.outputs)
                    varying.update(equation.outputs if varies else ())
        return gathers

    def _find_reductions(self) -> tuple[list[Equation], list[Equation]]:
        """Return the collectives that can run in the next iteration, and the equations between them and results."""
        carry, rows = set(self.body.outputs[: self.op.carried]), set(self.body.outputs[self.op.carried :])
        users: dict[Value, list[Equation]] = {}
        for equation in self.body.equations:
            for value in equation.inputs:
                users.setdefault(value, []).append(equation)
        late: set[Equation] = set()
        reductions = []
        for equation in reversed(self.body.equations):
            can_wait = all(
                value not in carry
                and (value in rows or value in users)
                and all(user in late for user in users.get(value, ()))
                for value in equation.outputs
            )
            if not can_wait or equation in self.gathers:
                continue
            if self.local.bytes_sent(equation):
                if equation.op.reduces_across_devices:
                    reductions.append(equation)
                    late.add(equation)
            elif is_movable(self.local, equation):
                late.add(equation)
        return reductions[::-1], self._descendants(reductions, late)

    def _descendants(self, reductions: Iterable[Equation], late: set[Equation]) -> list[Equation]:
        """Return the late equations that depend on a reduction."""
        reached = {value for equation in reductions for value in equation.outputs}
        descendants = []
        for equation in self.body.equations:
            if equation in late and not reached.isdisjoint(equation.inputs):
                reached.update(equation.outputs)
                descendants.append(equation)
        return descendants

    def pipelined(self) -> tuple[PipelinedScan, list[int]]:
        """Return the pipelined loop, and for each of its results the index of the scan's result."""
        op, body = self.op, self.body
        consts, carry, slices = op.split_operands(body.inputs)
        fetched = [equation.outputs[0] for equation in self.gathers]
        finishing = {*self.reductions, *self.after_reductions}
        finish_equations = [equation for equation in body.equations if equation in finishing]
        finished_values = {value for equation in finish_equations for value in equation.outputs}
        moved = finishing.union(self.gathers)
        results = range(op.carried, len(body.outputs))
        kept = [index for index in results if body.outputs[index] not in finished_values]
        finished = [index for index in results if body.outputs[index] in finished_values]
        pending = list(
            dict.fromkeys(
                value
                for equation in finish_equations
                for value in equation.inputs
                if value not in finished_values and value not in consts
            )
        )
        fetch = Program((*consts, *slices), body.equations, tuple(fetched), f"fetch_{body.name}")
        program = Program(
            (*consts, *carry, *slices, *fetched),
            tuple(equation for equation in body.equations if equation not in moved),
            (*body.outputs[: op.carried], *(body.outputs[index] for index in kept), *pending),
            body.name,
        )
        finish = Program(
            (*consts, *pending),
            tuple(finish_equations),
            tuple(body.outputs[index] for index in finished),
            f"finish_{body.name}",
        )
        pipelined = PipelinedScan(
            inline_copy(_without_barriers(dce(fetch))),
            dce(program),
            inline_copy(finish),
            op.length,
            op.consts,
            op.carried,
            op.reverse,
        )
        return pipelined, [*range(op.carried), *kept, *finished]


def _without_barriers(program: Program) -> Program:
    """Return a program without barriers, which are not needed: CSE does not merge iterations of a loop."""
    same: dict[Value, Value] = {}
    equations = []
    for equation in program.equations:
        inputs = [same.get(value, value) for value in equation.inputs]
        if equation.op.fusion.is_barrier:
            same[equation.outputs[0]] = inputs[0]
        else:
            equations.append(equation.replace(inputs=inputs))
    return program.with_equations(equations, [same.get(value, value) for value in program.outputs])
