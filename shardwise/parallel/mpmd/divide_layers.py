"""divide_layers: divide a scan over the layers of a model into one scan per stage, with a boundary between.

A parameter that has the weights of all layers, stacked along dim 0, becomes one input per stage. It may be cast before
the scan; every other use keeps it whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.replay import for_each_equation
from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.integers import is_integer


@final
class DividedLayers(NamedTuple):
    """A program whose scan over layers is divided.

    Attributes:
        program: the program. In place of a divided parameter it has one input per stage.
        layers: the number of layers of each stage.
        is_divided: for each parameter of the original program, whether it is divided.
    """

    program: Program
    layers: tuple[int, ...]
    is_divided: tuple[bool, ...]


def divide_layers(program: Program, params: int, stages: int | Sequence[int], boundary: Op) -> DividedLayers:
    """Divide the scan of a program that has the most bytes of parameters.

    Args:
        program: the program of a model, without calls of other programs.
        params: the number of its inputs that are parameters.
        stages: the number of stages, or the number of layers of each.
        boundary: the op that marks the end of a stage.

    Raises:
        StrategyError: if there is no such scan, or if it has other layers.
    """
    casts = _casts_of_params(program, params)
    scan = scan_over_layers(program, params)
    assert isinstance(scan.op, Scan)
    layers = _layers_by_stage(stages, scan.op.length, str(scan.source))
    stacked = set(scan.op.split_operands(scan.inputs)[2])
    uses = [(value, equation) for equation in program.equations for value in equation.inputs]
    whole = {
        casts[value]
        for value, equation in uses
        if value in casts and equation is not scan and equation.outputs[0] not in casts
    }
    whole |= {casts[value] for value in (*program.outputs, *set(scan.inputs).difference(stacked)) if value in casts}
    divided = {casts[value] for value in stacked if value in casts} - whole
    is_divided = tuple(value in divided for value in program.inputs[:params])
    types: list[ArrayType] = []
    for value in program.inputs:
        rows = layers if value in divided else (None,)
        types += [
            value.type if count is None else value.type.with_shape((count, *value.type.shape[1:])) for count in rows
        ]

    def run(*leaves: Any) -> list[Any]:
        rest = iter(leaves)
        whole: dict[Value, Any] = {}
        parts: dict[Value, list[Any]] = {}
        for value in program.inputs:
            if value in divided:
                parts[value] = [next(rest) for _ in layers]
            else:
                whole[value] = next(rest)

        def emit(equation: Equation) -> None:
            if equation is scan:
                results = _scan_stages(scan, whole, parts, layers, boundary)
            elif equation.inputs and equation.inputs[0] in parts:  # a cast
                parts[equation.outputs[0]] = [equation.op(part) for part in parts[equation.inputs[0]]]
                return
            else:
                found = equation.op(*(whole[value] for value in equation.inputs))
                results = [found] if equation.op.single else found
            whole.update(zip(equation.outputs, results, strict=True))

        for_each_equation(program.equations, emit)
        return [whole[value] for value in program.outputs]

    divided_program, captured = build(run, types, program.name)
    assert not captured
    return DividedLayers(divided_program, layers, is_divided)


def _casts_of_params(program: Program, params: int) -> dict[Value, Value]:
    """Return the parameters and their casts, each with its parameter. Frozen parameters have no gradient."""
    found = {value: value for value in program.inputs[:params]}
    for equation in program.equations:
        if isinstance(equation.op, (Convert, StopGradient)) and equation.inputs[0] in found:
            found[equation.outputs[0]] = found[equation.inputs[0]]
    return found


def scan_over_layers(program: Program, params: int) -> Equation:
    """Return the scan that slices the most bytes of parameters.

    Raises:
        StrategyError: if there is none.
    """
    casts = _casts_of_params(program, params)

    def parameter_bytes(scan: Equation) -> int:
        assert isinstance(scan.op, Scan)
        return sum(casts[value].type.nbytes for value in scan.op.split_operands(scan.inputs)[2] if value in casts)

    scans = [each for each in program.equations if isinstance(each.op, Scan) and not each.op.reverse]
    found = max(scans, key=parameter_bytes, default=None)
    if found is None or not parameter_bytes(found):
        raise StrategyError(
            "split_stages: the model has no `scan` over the stacked weights of its layers, which `stages` divides: "
            "scan over the layers, or leave `stages` out and mark the ends of stages by `stage_boundary`."
        )
    return found


def _layers_by_stage(stages: int | Sequence[int], length: int, source: str) -> tuple[int, ...]:
    """Return the number of layers of each stage. If the stages cannot be equal, the last ones have one layer less.

    The last stage also computes the loss.
    """
    counts: tuple[int, ...] = ()
    if is_integer(stages):
        number = int(stages)
        counts = tuple((length + number - 1 - stage) // number for stage in range(number))
    elif isinstance(stages, (Sequence, np.ndarray)) and all(map(is_integer, stages)):
        counts = tuple(map(int, stages))
    if not counts or min(counts) < 1 or sum(counts) != length:
        raise StrategyError(
            f"split_stages: the scan at {source} has {length} layers, which stages={stages!r} does not divide: pass a "
            f"number of stages from 1 to {length}, or numbers of layers whose sum is {length}."
        )
    return counts


def _scan_stages(
    scan: Equation, whole: dict[Value, Any], parts: dict[Value, list[Any]], layers: Sequence[int], boundary: Op
) -> list[Any]:
    """Return the results of a scan, computed by one scan per stage."""
    assert isinstance(scan.op, Scan)
    op = scan.op
    consts, carry, stacks = op.split_operands(scan.inputs)
    carried = [whole[value] for value in carry]
    stacked: list[list[Any]] = []
    for stage, (start, stop) in enumerate(pairwise(accumulate(layers, initial=0))):
        if stage:
            carried = [boundary(value) for value in carried]
        slices = [
            parts[value][stage] if value in parts else lax.slice_in_dim(whole[value], start, stop) for value in stacks
        ]
        results = replace(op, length=stop - start)(*(whole[value] for value in consts), *carried, *slices)
        carried = list(results[: op.carried])
        stacked.append(list(results[op.carried :]))
    return [*carried, *(jnp.concatenate(each) for each in zip(*stacked, strict=True))]
