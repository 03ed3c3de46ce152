"""Check one case: evaluate, simulate and devices must agree, for the chosen plan and for random plans.

plain   the recipe itself
grad    the gradient of the sum of its float outputs with respect to its float inputs
jvp     its outputs, and the tangents of the float ones for one tangent of its float inputs
vmap    over a new dim of some inputs
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

import shardwise
from shardwise.base._jaxlib import put
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.candidates.candidate import PARTIAL_SUM, REPLICATED, Candidate, State
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.control.custom_derivatives import Custom
from shardwise.compiler.dtypes import is_float, is_inexact, is_key
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.lower.lower import lower
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import ArrayConstant
from shardwise.compiler.partition.evaluate_shards import evaluate_shards, split_into_shards
from shardwise.compiler.partition.local_program import LocalProgram, Placement
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.choose import is_compatible
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.plan.plan_from_picks import Picks, plan_from_picks
from shardwise.compiler.schedule import software_pipelining
from shardwise.compiler.schedule.schedule import schedule
from shardwise.compiler.search import move_exchanges
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.spec import pin_of, spec_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lift_constants import lift_constants
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.execute.executor import as_array
from shardwise.runtime.array import ArrayImpl, array_signature
from shardwise.runtime.executable import Executable
from shardwise.sharding import NamedSharding
from tests.fuzz.control import UNTYPED, Typing, function_of, has_no_forward_mode, has_no_reverse_mode, random_recipe
from tests.fuzz.layouts import Spec, abstract, partition_spec, random_mesh, random_spec, spec_text
from tests.fuzz.recipe import Recipe, has_narrow_floats, random_array
from tests.fuzz.unoptimized import UNOPTIMIZED

KINDS = ("plain", "plain", "grad", "grad", "vmap", "jvp")
H200 = chip("h200")
PLANS = 6  # random plans per case


class Mismatch(AssertionError):
    """Two stages disagree."""


@dataclass(frozen=True)
class Case:
    """A recipe, a transformation of it, and a mesh. Specs are those of the transformed function."""

    seed: int
    mesh: dict[str, int]
    recipe: Recipe
    kind: str
    batch: tuple[int | None, ...] = ()  # for vmap: the mapped dim of each input
    size: int = 0
    specials: bool = False  # inputs contain infinities and NaN

    def __str__(self) -> str:
        ins = ", ".join(spec_text(spec) for spec in self.in_specs)
        try:
            outs = ", ".join(spec_text(spec) for spec in self.out_specs)
        except Exception as error:  # a failing case must print
            outs = f"unknown, tracing fails: {type(error).__name__}"
        mapped = f" {self.batch} of {self.size}" if self.kind == "vmap" else ""
        special = ", with inf and nan" if self.specials else ""
        head = f"seed {self.seed}: {self.kind}{mapped}{special} on mesh {self.mesh}"
        return f"{head}\n  in: {ins}\n  out: {outs}\n{self.recipe}"

    def function(
        self, constrain: Callable[[Any, Spec], Any], typing: Typing = UNTYPED
    ) -> Callable[..., tuple[Any, ...]]:
        """Return the transformed function, which is jitted."""
        body = function_of(self.recipe, constrain, typing)
        if self.kind == "plain":
            return body
        if self.kind == "vmap":
            return shardwise.vmap(body, self.batch)
        active = tuple(index for index, type in enumerate(self.recipe.inputs) if is_float(type.dtype))
        if self.kind == "jvp":
            return self._jvp_function(body, active)

        def loss(*args: Any) -> Any:
            total: Any = 0.0
            for output in body(*args):
                if isinstance(output, Array) and is_float(output.dtype):
                    total = total + output.astype(np.float32).sum()
            return total

        def value_and_gradients(*args: Any) -> tuple[Any, ...]:
            value, grads = shardwise.value_and_grad(loss, active)(*args)
            return value, *grads

        return value_and_gradients

    def _jvp_function(
        self, body: Callable[..., tuple[Any, ...]], active: Sequence[int]
    ) -> Callable[..., tuple[Any, ...]]:
        def value_and_tangents(*args: Any) -> tuple[Any, ...]:
            def of_active_inputs(*active_args: Any) -> tuple[Any, ...]:
                replaced = dict(zip(active, active_args, strict=True))
                return body(*(replaced.get(number, arg) for number, arg in enumerate(args)))

            primals = [args[number] for number in active]
            results, tangents_out = shardwise.jvp(of_active_inputs, primals, [x + 1 for x in primals])
            return *results, *(tangents_out[number] for number in self.float_outputs)

        return value_and_tangents

    @property
    def float_outputs(self) -> list[int]:
        types = self.recipe.types
        return [place for place, number in enumerate(self.recipe.outputs) if is_float(types[number].dtype)]

    @cached_property
    def in_types(self) -> tuple[ArrayType, ...]:
        if self.kind != "vmap":
            return self.recipe.inputs
        return tuple(
            type if dim is None else type.with_shape((*type.shape[:dim], self.size, *type.shape[dim:]))
            for type, dim in zip(self.recipe.inputs, self.batch, strict=True)
        )

    @cached_property
    def traced(self) -> tuple[Program, list[Any]]:
        """The program, and the arrays that it closes over, which are its last inputs."""

        def constrain(x: Any, spec: Spec) -> Any:
            pin = pin_of(partition_spec(spec), x.type.shape, abstract(self.mesh))
            return Constrain(pin.layout.dims, abstract(self.mesh), tuple(sorted(pin.open_dims)))(x)

        return lifted(*build(self.function(constrain), self.in_types, "fuzzed"))

    @cached_property
    def in_specs(self) -> tuple[Spec, ...]:
        rng = Random(f"{self.seed} in")
        return tuple(random_spec(rng, type.shape, self.mesh) for type in self.in_types)

    @cached_property
    def out_specs(self) -> tuple[Spec | None, ...]:
        rng = Random(f"{self.seed} out")
        return tuple(
            random_spec(rng, type.shape, self.mesh, unconstrained=rng.random() < 0.3) if rng.random() < 0.5 else None
            for type in self.traced[0].out_types
        )

    @cached_property
    def args(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        arrays = [
            np.array(random_array(rng, type, integers))
            for type, integers in zip(self.in_types, self.recipe.integers, strict=True)
        ]
        for array in arrays if self.specials else []:
            if is_inexact(array.dtype):
                where = rng.random(array.shape)
                array[where < 0.04] = np.inf
                array[where > 0.96] = np.nan
        return arrays

    @property
    def exact(self) -> tuple[bool, ...]:
        """Whether each output must be equal bit by bit."""
        if self.kind == "grad":
            return tuple(not is_float(type.dtype) for type in self.traced[0].out_types)
        tangents = (False,) * len(self.float_outputs) if self.kind == "jvp" else ()
        return self.recipe.exact + tangents


def lifted(program: Program, captured: list[Any]) -> tuple[Program, list[Any]]:
    """Return a program whose array constants are inputs, as in a request, and all arrays that it closes over."""
    if not any(isinstance(equation.op, ArrayConstant) for equation in program.walk()):
        return verify(program), captured
    program, arrays = lift_constants(inline(program))
    return verify(program), [*captured, *arrays]


def random_case(seed: int) -> Case:
    """Return the case of this seed."""
    rng = Random(seed)
    mesh = random_mesh(rng)
    recipe = random_recipe(rng, mesh)
    kind = rng.choice(KINDS)
    types = recipe.types
    if kind == "grad" and has_no_reverse_mode(recipe):
        kind = "jvp"
    floats = any(is_float(type.dtype) for type in recipe.inputs)
    if (
        (kind == "grad" and not any(is_float(types[i].dtype) for i in recipe.outputs))
        or (kind == "jvp" and has_no_forward_mode(recipe))
        or (kind in ("grad", "jvp") and not floats)
    ):
        kind = "plain"
    # XLA may skip the products of a convolution's padding, so that a NaN in the kernel does not propagate there.
    has_convolution = any(step.kind == "conv" for step in recipe.all_steps)
    specials = rng.random() < 0.15 and not has_convolution
    if kind != "vmap":
        return Case(seed, mesh, recipe, kind, specials=specials)
    batch = [rng.choice((None, rng.randint(0, type.ndim))) for type in recipe.inputs]
    if all(dim is None for dim in batch):
        batch[0] = 0
    return Case(seed, mesh, recipe, kind, tuple(batch), rng.choice((1, 2, 3, 4, 5)), specials)


def check(case: Case, on_devices: bool = False, compile_twice: bool = False) -> None:
    """Raise an exception if any stage of the case fails or disagrees."""
    with np.errstate(all="ignore"):
        _check(case, on_devices, compile_twice)


def _check(case: Case, on_devices: bool, compile_twice: bool) -> None:
    program, captured = case.traced
    args = [*case.args, *(np.asarray(array) for array in captured)]
    judge = Judge(case, program, args)
    if case.kind == "vmap":
        judge("single calls", single_calls(case), None)
    if case.kind == "grad" and not has_no_forward_mode(case.recipe) and not case.specials:
        check_adjoint(case, judge)
    mesh = abstract(case.mesh)
    in_specs = (*case.in_specs, *((),) * len(captured))
    pins = [pin_of(partition_spec(s), t.shape, mesh) for s, t in zip(in_specs, program.in_types, strict=True)]
    out_pins: list[Pin | None] = [
        None if s is None else pin_of(partition_spec(s), t.shape, mesh)
        for s, t in zip(case.out_specs, program.out_types, strict=True)
    ]
    # The programs are small: without this, chains of exchanges would never be planned along another dim.
    with patch.object(move_exchanges, "SMALL", 0):
        stages, repeated = (run_stages(program, mesh, pins, out_pins) for _ in range(2))
    if str(repeated.local.program) != str(stages.local.program):
        raise Mismatch("two different plans for the same program")
    if repeated.module.text != stages.module.text:
        raise Mismatch("two different HLO texts for the same program")
    check_pins(stages.problem, stages.plan)
    if is_parsable(program):
        check_text(program)
    check_text(stages.problem.program)
    check_text(stages.local.program)
    judge("simulate", evaluate_shards(stages.local, args), stages.local)
    rng = Random(f"{case.seed} plans")
    check_schedule(stages.local, args, rng)
    for index in range(PLANS):
        plan = plan_from_picks(stages.problem, random_picks(stages.problem, rng))
        check_pins(stages.problem, plan)
        local = partition(stages.problem, plan)
        check_text(local.program)
        judge(f"simulate, random plan {index}", evaluate_shards(local, args), local)
        scheduled = check_schedule(local, args, rng)
        if on_devices and index == 0:
            judge("devices, random plan", run_local(local, args), local)
            judge("devices, random plan, scheduled", run_local(scheduled, args), scheduled)
    if on_devices:
        judge("jit", run_jit(case), stages.local)
    if compile_twice:
        judge.tolerance *= 4  # sums are sequential then, and their rounding errors are larger
        judge("jit, compiled without optimizations", run_jit(case, UNOPTIMIZED), stages.local)


def check_schedule(local: LocalProgram, args: Sequence[np.ndarray], rng: Random) -> LocalProgram:
    """Raise an exception if a scheduled program has another meaning. Return it, for a chip of random rates."""
    slowdown = 10.0 ** rng.uniform(0, 6)
    slow = replace(
        H200, f32_flops=H200.f32_flops / slowdown, memory_bandwidth=H200.memory_bandwidth / rng.choice((1, slowdown))
    )
    with patch.object(software_pipelining, "MIN_TRIP_COUNT", 1):  # loops of random programs are short
        scheduled = schedule(local, slow)
    check_text(scheduled.program)
    if not math.isclose(scheduled.sent, local.sent):
        raise Mismatch(f"the schedule sends {scheduled.sent} bytes instead of {local.sent}")
    for index, (actual, expected) in enumerate(
        zip(evaluate_shards(scheduled, args), evaluate_shards(local, args), strict=True)
    ):
        if actual.tobytes() != expected.tobytes():
            raise Mismatch(f"the schedule changes output {index}\n{scheduled}")
    return scheduled


class Judge:
    """Compares the outputs of a stage with those of `evaluate`."""

    def __init__(self, case: Case, program: Program, args: Sequence[np.ndarray]):
        self.case = case
        program = without_keys(program)
        self.expected = evaluate(program, args)
        # Rounding errors grow with the largest intermediate value, not with the result.
        unit = 2.0**-4 if has_narrow_floats(case.recipe) else 2.0**-17
        self.tolerance = unit * largest_magnitude(program, args)

    def __call__(self, stage: str, results: Sequence[np.ndarray], local: LocalProgram | None) -> None:
        for index, (actual, expected, exact) in enumerate(zip(results, self.expected, self.case.exact, strict=True)):
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise Mismatch(
                    f"{stage}: output {index} is {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
                )
            wide = np.float64 if is_float(expected.dtype) else expected.dtype
            tolerance = 0.0 if exact else self.tolerance
            if is_float(expected.dtype):
                matches = np.isclose(actual.astype(wide), expected.astype(wide), rtol=0, atol=tolerance, equal_nan=True)
            else:
                matches = actual == expected
            if not np.all(matches):
                text = str(local.program) if local is not None else ""
                raise Mismatch(
                    f"{stage}: output {index} differs in {np.size(matches) - np.sum(matches)} of {np.size(matches)} "
                    f"elements (tolerance {tolerance:.2g})\n  actual {actual}\nexpected {expected}\n{text}"
                )


def without_keys(program: Program) -> Program:
    """Return the program on the words of PRNG keys, which numpy can evaluate; without keys, the program itself."""
    has_keys = any(is_key(value.type.dtype) for equation in program.walk() for value in equation.outputs)
    return lower_keys(inline(program)) if has_keys else program


def single_calls(case: Case) -> list[np.ndarray]:
    """Evaluate the recipe on each slice of its mapped inputs and stack the results: the meaning of vmap."""
    program, captured = replace(case, kind="plain").traced
    constants = [np.asarray(array) for array in captured]
    slices = []
    for index in range(case.size):
        args = [x if d is None else np.take(x, index, d) for x, d in zip(case.args, case.batch, strict=True)]
        slices.append(evaluate(without_keys(program), [*args, *constants]))
    return [np.stack(parts) for parts in zip(*slices, strict=True)]


def check_adjoint(case: Case, judge: Judge) -> None:
    """Check that the gradient times a tangent equals the jvp of that tangent."""
    program, captured = replace(case, kind="jvp").traced
    tangents_out = evaluate(without_keys(program), [*case.args, *(np.asarray(array) for array in captured)])[
        len(case.recipe.outputs) :
    ]
    forward = sum(float(np.sum(tangent, dtype=np.float64)) for tangent in tangents_out)
    active = [arg for arg, type in zip(case.args, case.recipe.inputs, strict=True) if is_float(type.dtype)]
    terms = [
        grad.astype(np.float64) * (arg.astype(np.float64) + 1)
        for grad, arg in zip(judge.expected[1:], active, strict=True)
    ]
    count = sum(term.size for term in terms) + sum(tangent.size for tangent in tangents_out)
    backward = sum(float(np.sum(term)) for term in terms)
    if not abs(forward - backward) <= judge.tolerance * 8 * math.sqrt(count):
        raise Mismatch(f"adjoint: {backward} in reverse mode, {forward} in forward mode")


def largest_magnitude(program: Program, args: Sequence[np.ndarray]) -> float:
    """Return the largest finite magnitude of any intermediate value, nested programs included; at least 1."""
    peak = 1.0

    def run(program: Program, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        nonlocal peak
        env: dict[Value, np.ndarray] = {}

        def note(values: Sequence[Value], arrays: Sequence[np.ndarray]) -> None:
            nonlocal peak
            for value, array in zip(values, arrays, strict=True):
                env[value] = x = np.asarray(array, value.type.dtype)
                peak = max(peak, float(np.max(np.abs(x[np.isfinite(x)]).astype(np.float64), initial=0.0)))

        note(program.inputs, args)
        for equation in program.equations:
            op = equation.op
            operands = [env[value] for value in equation.inputs]
            if isinstance(op, Control):

                def run_program(n: int, shards: list[list[np.ndarray]], op: Control = op) -> list[list[np.ndarray]]:
                    return [[x] for x in run(op.programs[n], [of_device[0] for of_device in shards])]

                note(
                    equation.outputs, [of_device[0] for of_device in op.interpret(run_program, [[x] for x in operands])]
                )
            elif op.is_call:
                note(equation.outputs, run(op.programs[0], operands))
            else:
                results = op.reference(*operands)
                note(equation.outputs, [results] if op.single else results)
        return [env[value] for value in program.outputs]

    run(program, args)
    return peak


def is_parsable(program: Program) -> bool:
    """Return whether the text of a program can be parsed: custom rules and policies are functions, and have no text."""
    return all(
        not isinstance(op := equation.op, Custom)
        and getattr(op, "policy", None) is None
        and all(map(is_parsable, op.programs))
        for equation in program.equations
    )


def check_text(program: Program) -> None:
    """Check that the text of a program parses to the same program."""
    if parse_program(str(program)) != program:
        raise Mismatch(f"the text parses to a different program:\n{program!s}")


def check_pins(problem: LayoutProblem, plan: LayoutPlan) -> None:
    """Check that the plan satisfies all pins."""
    pairs = [(layout, pin) for layout, pin in zip(plan.outputs, problem.out_pins, strict=True) if pin]
    for equation, choice in plan.choices.items():
        if isinstance(equation.op, Constrain):
            pairs.append((choice.results[0], equation.op.constraint))
    for layout, pin in pairs:
        closed = [dim for dim in range(len(layout.dims)) if dim not in pin.open_dims]
        if layout.partial or any(layout.dims[dim] != pin.layout.dims[dim] for dim in closed):
            raise Mismatch(f"pinned to {pin.layout}, planned as {layout}")


def random_picks(problem: LayoutProblem, rng: Random) -> Picks:
    """Choose a random candidate for every equation on every axis, among those whose operands are available."""
    axes = problem.mesh.axis_names
    picks: Picks = {axis: {} for axis in axes}
    states: dict[str, dict[Value, State]] = {axis: {} for axis in axes}
    for axis in axes:
        for value, pin in problem.pinned.items():
            dim = pin.layout.dim_of(axis)
            states[axis][value] = REPLICATED if dim is None else dim
    # The carry precedes the loop body: if the carry is a partial sum, the body must return one.
    must_be_terms: dict[str, set[Value]] = {axis: set() for axis in axes}
    for equation in problem.planned:
        for axis in rng.sample(axes, len(axes)):
            others = {name: rows for name, rows in picks.items() if name != axis and equation in rows}
            options = [
                candidate
                for candidate in problem.candidates[axis][equation]
                if is_compatible(problem, axis, equation, candidate, others)
                and _operands_available(problem, equation, candidate, states[axis])
                and all(
                    value not in must_be_terms[axis] or _can_be_term(state)
                    for value, state in zip(equation.outputs, candidate.results, strict=True)
                )
            ]
            picks[axis][equation] = choice = rng.choice(options)
            states[axis].update(zip(equation.outputs, choice.results, strict=True))
            operands = zip(equation.inputs, choice.operands, strict=True)
            must_be_terms[axis].update(
                value for value, state in operands if state == PARTIAL_SUM and choice.replicated_as_partial
            )
    return picks


def _operands_available(
    problem: LayoutProblem, equation: Equation, candidate: Candidate, states: dict[Value, State]
) -> bool:
    """Return whether the operands can have the states of a candidate: partial ones are partial, or adopted as terms."""
    for value, required in zip(equation.inputs, candidate.operands, strict=True):
        state = REPLICATED if value in problem.free else states.get(value, REPLICATED)
        if (
            required == PARTIAL_SUM
            and state != required
            and not (candidate.replicated_as_partial and _can_be_term(state))
        ):
            return False
    return True


def _can_be_term(state: State) -> bool:
    """Return whether a value can become a term of a partial sum."""
    return isinstance(state, int) or state in (REPLICATED, PARTIAL_SUM)


@lru_cache(maxsize=64)
def device_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    devices = shardwise.devices()[: math.prod(sizes)]
    return Mesh(np.array(devices, object).reshape(sizes), names)


def run_local(local: LocalProgram, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a local program on devices; the padding of its inputs holds junk."""
    mesh = device_mesh(local.mesh.axis_sizes, local.mesh.axis_names)
    shardings = [NamedSharding(mesh, spec_of(placement.layout)) for placement in local.outputs]
    executable = Executable(lower(local), local, mesh.flat_devices, shardings, True)
    buffers = [
        put(split_into_shards(placement, arg, local.mesh), mesh.flat_devices, mesh.flat_devices)
        for placement, arg in zip(local.inputs, args, strict=True)
    ]
    return [np.asarray(array) for array in executable.run(buffers)]


def run_jit(case: Case, compiler_options: dict[str, str] | None = None) -> list[np.ndarray]:
    """Run the case through jit, as a user would."""
    mesh = device_mesh(tuple(case.mesh.values()), tuple(case.mesh))

    def constrain(x: Any, spec: Spec) -> Any:
        return shardwise.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(spec)))

    out_shardings = tuple(None if s is None else NamedSharding(mesh, partition_spec(s)) for s in case.out_specs)
    in_shardings = tuple(NamedSharding(mesh, partition_spec(spec)) for spec in case.in_specs)
    jit = partial(
        shardwise.jit, case.function(constrain), out_shardings=out_shardings, compiler_options=compiler_options
    )
    if case.seed % 3 == 0:  # pass numpy arrays
        jitted = jit(in_shardings=in_shardings)
        return [np.asarray(as_array(x)) for x in jitted(*case.args)]
    arrays = []
    for arg, type, sharding in zip(case.args, case.in_types, in_shardings, strict=True):
        placement = Placement(type, sharding.pin(type.shape).layout)
        shards = put(split_into_shards(placement, arg, mesh.abstract), mesh.flat_devices, mesh.flat_devices)
        arrays.append(ArrayImpl.from_buffers(shards, array_signature(type, sharding, True)))
    return [np.asarray(as_array(x)) for x in jit()(*arrays)]
