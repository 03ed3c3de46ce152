"""Random applications of ops to operands with Explicit shardings, and what is checked of each.

types          an error where the rule has one, and otherwise the result types that `statement.py` has
values         those of numpy on one device
wire bytes     at most those of a plan for Auto axes with the same shardings of operands and results
cotangents     types by the table of docs/explicit.md, values as without shardings
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, final

import numpy as np

import shardwise as sw
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import check_shardings, factor_rule, result_types
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import Reshard, reshard_to
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import Stages, run_stages
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.report.report import report
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType
from shardwise.compiler.trace.build import build, rewrite
from shardwise.errors import ShardingTypeError
from tests.compiler.ops.cases import Case, op_cases, plain
from tests.compiler.ops.laws import (
    CUSTOM_DERIVATIVE,
    active_operands,
    assert_alike,
    has_derivative,
    has_free_phase,
    has_rule,
    wide_op,
    wide_type,
)
from tests.explicit.statement import Refused, Spec, result_specs

MESHES = ((2,), (4,), (2, 2), (3, 2), (4, 2), (2, 3))
AXES = ("x", "a", "m")  # not sorted, so that nothing can depend on the order of names
KINDS = (AxisType.Explicit, AxisType.Explicit, AxisType.Auto)


@final
@dataclass(frozen=True)
class Sample:
    """An op, the types of its operands, their shardings, and a mesh.

    Attributes:
        case: the op and the plain types of its operands.
        mesh: a mesh with Explicit axes, and possibly Auto ones.
        layouts: the axes of each dim of each operand, Auto axes included.
        unreduced, reduced: the axes over which each operand is unreduced or reduced.
    """

    case: Case
    mesh: AbstractMesh
    layouts: tuple[tuple[tuple[str, ...], ...], ...]
    unreduced: tuple[tuple[str, ...], ...]
    reduced: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.case.op} of {' and '.join(map(str, self.types))} on {self.mesh!r}, layouts {self.layouts}"

    @property
    def types(self) -> tuple[ArrayType, ...]:
        """The types of the operands."""
        return tuple(
            type.with_explicit(ExplicitSharding.from_dims(self.mesh, *sharding))
            for type, *sharding in zip(self.case.types, self.layouts, self.unreduced, self.reduced, strict=True)
        )

    @cached_property
    def expected(self) -> list[Spec] | str:
        """The specs of the results by the statement of the rule, or why it refuses."""
        rule = factor_rule(self.case.op, self.case.types)
        specs = [spec_of(type) for type in self.types]
        try:
            op = self.case.op
            return result_specs(rule, op.linear_in(*self.types), op.is_contraction, specs, self.mesh.shape)
        except Refused as refused:
            return str(refused)

    @property
    def in_pins(self) -> list[Pin]:
        return [Pin(Layout(dims)) for dims in self.layouts]


def spec_of(type: ArrayType) -> Spec:
    sharding = type.explicit
    if sharding is None:
        return Spec(((),) * type.ndim)
    return Spec(sharding.dims, frozenset(sharding.unreduced), frozenset(sharding.reduced))


def sampled_cases() -> list[Case]:
    """Return the cases whose types follow from factor rules: control flow and placement have rules of their own."""
    return [
        case
        for case in op_cases()
        if has_rule(case) and case.types and not case.op.programs and not isinstance(case.op, (Constrain, Reshard))
    ]


def random_sample(rng: Random, case: Case) -> Sample:
    """Return a sample of a case: most often all operands shard the same factors, so that few conflict."""
    sizes = rng.choice(MESHES)
    names = AXES[: len(sizes)]
    kinds = [AxisType.Explicit, *(rng.choice(KINDS) for _ in names[1:])]
    mesh = AbstractMesh(sizes, names, axis_types=rng.sample(kinds, len(kinds)))
    rule = factor_rule(case.op, case.types)
    layouts = [[[] for _ in range(type.ndim)] for type in case.types]
    unreduced, reduced = ([[] for _ in case.types] for _ in range(2))
    arbitrary = rng.random() < 0.25
    for axis in rng.sample(names, len(names)):
        is_explicit = axis in mesh.explicit_axes
        if not arbitrary and rng.random() < 0.75 and rule.sizes:
            factor = rng.randrange(len(rule.sizes))
            for number, dims in enumerate(rule.operands):
                with_factor = [dim for dim, factors in enumerate(dims) if factor in factors]
                if with_factor and rng.random() < 0.75:
                    layouts[number][rng.choice(with_factor)].append(axis)
        elif is_explicit and not case.special and rng.random() < 0.4:  # 0 is a term of inf, and 0 · inf is NaN
            sets = case.op.linear_in(*case.types)
            chosen = rng.choice(sets) if sets and rng.random() < 0.8 else [rng.randrange(len(case.types))]
            for number in chosen:
                if rng.random() < 0.9:
                    unreduced[number].append(axis)
        else:
            for number, type in enumerate(case.types):
                if type.ndim and rng.random() < 0.5:
                    rng.choice(layouts[number]).append(axis)
        for number in range(len(case.types)):
            used = (*unreduced[number], *(a for of_dim in layouts[number] for a in of_dim))
            if is_explicit and axis not in used and rng.random() < 0.15:
                reduced[number].append(axis)
    in_order = lambda rows: tuple(tuple(axis for axis in names if axis in row) for row in rows)  # noqa: E731
    return Sample(
        case, mesh, tuple(tuple(map(tuple, dims)) for dims in layouts), in_order(unreduced), in_order(reduced)
    )


def check_sample(sample: Sample) -> None:
    """Check types, values, wire bytes and cotangents of a sample."""
    check_types(sample)
    check_values(sample)
    check_cotangents(sample)


def check_types(sample: Sample) -> None:
    """Check that the rule refuses what the statement refuses, and gives results the same types."""
    op, types = sample.case.op, sample.types
    if isinstance(sample.expected, str):
        if any(type.explicit for type in types):
            try:
                check_shardings(op, types)
            except ShardingTypeError:
                return
            raise AssertionError(f"accepted, but the statement refuses it: {sample.expected}")
        return
    check_shardings(op, types)
    actual = [spec_of(type) for type in result_types(op, types)]
    assert actual == sample.expected, f"{actual}\nis not\n{sample.expected}"


def check_values(sample: Sample) -> None:
    """Check that devices compute what numpy computes, with no more bytes sent than by a plan for Auto axes."""
    case = sample.case
    program = typed_program("sample", sample, lambda *operands: _results(case.op(*operands)), sample.types)
    stages = run_stages(program, sample.mesh, sample.in_pins, [None] * len(program.outputs))
    expected = evaluate(case.program, case.args)
    assert_alike(case.op, evaluate_shards(stages.local, case.args), expected)
    if any(sample.unreduced) or isinstance(sample.expected, str):
        return  # an Auto axis has no such pins, or the op is an error
    auto = AbstractMesh(sample.mesh.axis_sizes, sample.mesh.axis_names)
    out_pins: list[Pin | None] = [
        Pin(Layout(spec_of(type).dims), _open_dims(sample.mesh, type)) for type in program.out_types
    ]
    planned = run_stages(case.program, auto, sample.in_pins, out_pins)
    sent, auto_sent = wire_bytes(stages), wire_bytes(planned)
    assert sent <= auto_sent, f"{sent} and not {auto_sent} bytes are sent:\n{stages.local}\n{planned.local}"


def check_cotangents(sample: Sample) -> None:
    """Check the types of cotangents, and their values in 64 bits."""
    case = sample.case
    out_types = [type.plain for type in result_types(case.op, sample.types)]
    if (
        not any(active_operands(case))
        or isinstance(case.op, CUSTOM_DERIVATIVE)
        or case.op.irreversible
        or not has_derivative(case)
        or has_free_phase(case)
        or not all(is_inexact(type.dtype) for type in out_types)
    ):
        return
    wide = Case(wide_op(case.op), tuple(map(wide_type, case.types)))
    typed = Sample(wide, sample.mesh, sample.layouts, sample.unreduced, sample.reduced)
    outs = result_types(wide.op, typed.types)
    cotangent_types = [type.with_explicit(type.explicit and type.explicit.cotangent) for type in outs]
    program = typed_program("cotangents", typed, _pullback(wide, typed.types), [*typed.types, *cotangent_types])
    reference, _ = build(_pullback(wide, None), [*wide.types, *(type.plain for type in outs)], "reference")
    args = [*case.plain(wide.types), *plain([type.plain for type in outs], f"cotangents of {case}")]
    pins = [*typed.in_pins, *(Pin(Layout(spec_of(type).dims)) for type in cotangent_types)]
    stages = run_stages(program, sample.mesh, pins, [None] * len(program.outputs))
    expected = evaluate(reference, args)
    for actual, right in zip(evaluate_shards(stages.local, args), expected, strict=True):
        scale = float(np.abs(right[np.isfinite(right)]).max(initial=1))
        np.testing.assert_allclose(actual, right, rtol=1e-7, atol=1e-9 * scale)


def typed_program(
    name: str, sample: Sample, function: Callable[..., Sequence[Any]], types: Sequence[ArrayType]
) -> Program:
    """Return the program of a function of these types, whose inputs and outputs are not unreduced."""

    def body(*args: Any) -> list[Any]:
        operands = [reshard_to(x, type.explicit) for x, type in zip(args, types, strict=True)]
        return [reshard_to(x, without_terms(x.type).explicit) for x in function(*operands)]

    return rewrite(name, [without_terms(type) for type in types], body)


def without_terms(type: ArrayType) -> ArrayType:
    """Return the type without unreduced axes."""
    sharding = type.explicit
    if sharding is None:
        return type
    return type.with_explicit(ExplicitSharding.from_dims(sharding.mesh, sharding.dims, (), sharding.reduced))


def _pullback(case: Case, types: Sequence[ArrayType] | None) -> Callable[..., list[Any]]:
    """Return the function (operands, cotangents of results) → cotangents of operands, which have the right types."""
    active = active_operands(case)

    def pullback(*args: Any) -> list[Any]:
        operands, cotangents = args[: len(case.types)], args[len(case.types) :]

        def of_active(*active_operands: Any) -> Any:
            rest = iter(active_operands)
            return case.op(*(next(rest) if is_active else x for x, is_active in zip(operands, active, strict=True)))

        _, pull = sw.vjp(of_active, *(x for x, is_active in zip(operands, active, strict=True) if is_active))
        results = list(pull(cotangents[0] if case.op.single else tuple(cotangents)))
        if types is not None:
            primals = [type for type, is_active in zip(types, active, strict=True) if is_active]
            actual, expected = [spec_of(x.type) for x in results], [spec_of(type).cotangent for type in primals]
            assert actual == expected, f"cotangents have types {actual}, and not {expected}"
        return results

    return pullback


def _results(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else [results]


def _open_dims(mesh: AbstractMesh, type: ArrayType) -> frozenset[int]:
    return frozenset(range(type.ndim)) if len(mesh.explicit_axes) < len(mesh.axis_names) else frozenset()


def wire_bytes(stages: Stages) -> float:
    return report(stages.problem, stages.plan, stages.local, CPU).wire_bytes
