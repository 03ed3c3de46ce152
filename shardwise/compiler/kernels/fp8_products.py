"""fp8_products: find the products with weights in a program, and compute the selected ones with float8 numbers.

A product is one with a weight if an operand descends from a parameter by casts, reshapes, transposes, slices and
concatenations; in a grouped product, the matrices. Each selected product becomes an `Fp8Dot`, and the program gets an
input for its scales. In a scan the scales of all iterations are stacked, so every product that runs has scales of its
own.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.remat import Remat
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.fp8_dot import Fp8Dot, quantize_operand
from shardwise.compiler.kernels.fp8_equations import SCALES, Fp8Form
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.identities import Barrier, CheckpointName
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.shape.movement import Reshape, Transpose, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, Slice, slice_along
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.replay import for_each_equation

_PASSING = (Convert, Reshape, Transpose, Slice, Concatenate, DynamicSlice, Barrier, CheckpointName, PVary)
_DEFAULT = ("DEFAULT", "DEFAULT")

Choose = Callable[[str], str]  # the name of a parameter → why its products are not computed with float8; "" if they are


@final
@dataclass(frozen=True)
class Product:
    """A product of a program.

    Attributes:
        name: the name of the parameter, with a number if it has several products; empty for a product without one.
        stack: the numbers of iterations of the loops around it, outermost first.
        reason: why it is not computed with float8 numbers; empty if it is.
        source: the user's line.
        types: the types of the operands.
    """

    name: str
    stack: tuple[int, ...]
    reason: str
    source: Source
    types: tuple[ArrayType, ...]


@final
@dataclass(eq=False)
class _Site:
    """An equation that is a product, or that holds programs with products."""

    product: Product | None = None
    weight: int = 1  # the operand that is the weight
    cast: Value | None = None  # the weight before it was cast to the dtype of the product
    inner: list["_Plan"] = field(default_factory=list)


@final
@dataclass(eq=False)
class _Plan:
    """The products of a program."""

    program: Program
    sites: dict[Equation, _Site]

    def products(self, stack: tuple[int, ...] = ()) -> Iterator[Product]:
        """Yield the products in order; `stack` are the numbers of iterations of the loops around the program."""
        for equation, site in self.sites.items():
            if site.product is not None:
                yield replace(site.product, stack=stack)
            inside = (*stack, equation.op.length) if isinstance(equation.op, Scan) else stack
            for plan in site.inner:
                yield from plan.products(inside)

    @property
    def selected(self) -> list[Product]:
        return [product for product in self.products() if not product.reason]


@final
class Fp8Products:
    """The products of a program, of which the selected ones can be computed with float8 numbers.

    Attributes:
        products: all products, with unique names if they have one.
        selected: those whose `reason` is empty.
    """

    def __init__(self, program: Program, names: Sequence[str], choose: Choose):
        """Find the products.

        Args:
            program: the program.
            names: the name of each input that is a parameter; "" for other inputs.
            choose: returns why the products of a parameter are not selected.
        """
        self._plan = _find(program, names, choose, "")
        self.products = _with_unique_names(self._plan.products())
        self.selected = [product for product in self.products if not product.reason]

    def rewrite(self, form: Callable[[Dot | GroupedDot, DType], Fp8Form]) -> Program:
        """Return the program with one further input for each selected product: its scales, [*stack, 3].

        Args:
            form: returns how a product is computed, given the product and the dtype of its result.
        """
        return _rewrite(self._plan, form)


def parameter_names(product: str) -> list[str]:
    """Return the names of the parameters of a product, given its name: several ones if they are concatenated."""
    return re.sub(r":\d+$", "", product).split("+")


def _with_unique_names(products: Iterator[Product]) -> list[Product]:
    """Append a number to the second and further names of selected products that are equal."""
    seen: dict[str, int] = {}
    unique = []
    for product in products:
        if not product.reason:
            seen[product.name] = seen.get(product.name, 0) + 1
        number = 1 if product.reason else seen[product.name]
        unique.append(product if number == 1 else replace(product, name=f"{product.name}:{number}"))
    return unique


def _find(program: Program, names: Sequence[str], choose: Choose, obstacle: str) -> _Plan:
    """Find the products of a program. `obstacle` says why none can be selected, if it is not empty."""
    program = inline(program, _is_plain_call)
    name_of = {value: name for value, name in zip(program.inputs, names, strict=True) if name}
    producers = program.producers()
    sites: dict[Equation, _Site] = {}
    for equation in program.equations:
        op = equation.op
        if isinstance(op, _PASSING):
            found = [name_of.get(value, "") for value in equation.inputs[: 1 if isinstance(op, DynamicSlice) else None]]
            if all(found):
                name_of[equation.outputs[0]] = "+".join(dict.fromkeys(found))
        elif op.constraint is not None and equation.inputs[0] in name_of:
            name_of[equation.outputs[0]] = name_of[equation.inputs[0]]
        elif isinstance(op, (Dot, GroupedDot)):
            sites[equation] = _product_site(equation, op, name_of, producers, choose, obstacle)
        elif op.programs:
            inside = obstacle or _obstacle_inside(op)
            operands = [name_of.get(value, "") for value in equation.inputs]
            plans = [
                _find(inner, _entry_names(op, number, operands), choose, inside)
                for number, inner in enumerate(op.programs)
            ]
            if any(plan.sites for plan in plans):
                sites[equation] = _Site(inner=plans)
    return _Plan(program, sites)


def _is_plain_call(op: Op) -> bool:
    return isinstance(op, Call)


def _product_site(
    equation: Equation,
    op: Dot | GroupedDot,
    name_of: Mapping[Value, str],
    producers: Mapping[Value, Equation],
    choose: Choose,
    obstacle: str,
) -> _Site:
    names = [name_of.get(value, "") for value in equation.inputs[:2]]
    if isinstance(op, GroupedDot):
        names[0] = ""
    weight = 1 if names[1] else 0
    types = equation.inputs[0].type, equation.inputs[1].type
    reason = "no operand is a parameter" if not any(names) else obstacle or _type_obstacle(op, types)
    product = Product(names[weight], (), reason or choose(names[weight]), equation.source, types)
    cast = producers.get(equation.inputs[weight])
    is_cast = cast is not None and isinstance(cast.op, Convert) and _is_supported(cast.inputs[0].type.dtype)
    return _Site(product, weight, cast.inputs[0] if cast is not None and is_cast else None)


def _is_supported(dtype: DType) -> bool:
    return is_float(dtype) and dtype.itemsize in (2, 4)


def _type_obstacle(op: Dot | GroupedDot, types: Sequence[ArrayType]) -> str:
    """Return why a product cannot be computed with float8 numbers; the empty string if it can."""
    if not _is_supported(types[0].dtype) or (op.dtype is not None and not _is_supported(op.dtype)):
        return f"operands of {types[0]} and {types[1]} are not floats of 16 or 32 bits"
    if isinstance(op, GroupedDot):
        return ""
    if op.precision != _DEFAULT:
        return f"its precision is {' and '.join(dict.fromkeys(op.precision))}"
    if not op.contract[0]:
        return "it sums over no dim"
    return ""


def _obstacle_inside(op: Op) -> str:
    """Return why products in the programs of an op cannot be selected; the empty string if they can."""
    if isinstance(op, (Scan, Cond, Remat)):
        return ""
    if op.opaque:
        return f"it is in a function with derivative rules of its own ({op.name})"
    if isinstance(op, Control) and op.is_manual:
        return "it is in a shard_map, which has no scales of its own"
    return f"it is in a {op.name}, which runs it an unknown number of times"


def _entry_names(op: Op, number: int, operands: Sequence[str]) -> Sequence[str]:
    """Return the names of the inputs of a program that an op holds, given the names of the operands."""
    inputs = op.programs[number].inputs
    if not isinstance(op, Control):
        return operands if len(operands) == len(inputs) else [""] * len(inputs)
    names = [""] * len(inputs)
    for binding in op.bindings:
        if len(binding.sources) == 1 and binding.sources[0].kind == "operand":
            for end in binding.targets:
                if end.kind == "entry" and end.program == number:
                    names[end.number] = operands[binding.sources[0].number]
    return names


def _rewrite(plan: _Plan, form: Callable[[Dot | GroupedDot, DType], Fp8Form]) -> Program:
    program = plan.program
    scale_types = [SCALES.with_shape((*product.stack, 3)) for product in plan.selected]

    def body(*args: Any) -> list[Any]:
        values: dict[Value, Any] = dict(zip(program.inputs, args, strict=False))
        scales = iter(args[len(program.inputs) :])
        products = _Emitter(form)

        def emit(equation: Equation) -> None:
            site = plan.sites.get(equation)
            operands = [values[value] for value in equation.inputs]
            if site is None or not any(not p.reason for p in _Plan(program, {equation: site}).products()):
                results = equation.op(*operands)
                results = (results,) if equation.op.single else results
            elif site.product is not None:
                weight = operands[site.weight] if site.cast is None else values[site.cast]
                x, others = operands[1 - site.weight], operands[2:]
                results = [products.emit(equation, site.weight, x, weight, next(scales), others)]
            else:
                own = [next(scales) for inner in site.inner for _ in inner.selected]
                results = _with_programs(equation.op, site.inner, form)(*operands, *own)
            values.update(zip(equation.outputs, results, strict=True))

        for_each_equation(program.equations, emit)
        return [values[value] for value in program.outputs]

    return rewrite(program.name, [*program.in_types, *scale_types], body)


@final
class _Emitter:
    """Emits the products of one program.

    The products of one array share its float8 numbers, with the scale of the first product.
    """

    def __init__(self, form: Callable[[Dot | GroupedDot, DType], Fp8Form]):
        self._form = form
        self._quantized: dict[Any, list[Any]] = {}

    def emit(
        self, equation: Equation, position: int, x: Operand, weight: Operand, scales: Operand, others: Sequence[Operand]
    ) -> Any:
        """Return the product with float8 numbers.

        `position` is the operand that is the weight, and `others` are those beside x and the weight.
        """
        op = equation.op
        assert isinstance(op, (Dot, GroupedDot))
        if isinstance(op, Dot) and position == 0:
            op = replace(op, contract=op.contract[::-1], batch=op.batch[::-1])
        form = self._form(op, equation.outputs[0].type.dtype)
        summed: Any = (op.contract[0], op.batch[0]) if isinstance(op, Dot) else ((1,), ())
        key = equation.inputs[1 - position], summed
        if key not in self._quantized:
            self._quantized[key] = quantize_operand(form, x, Reshape(())(slice_along(scales, 0, 0, 1)))
        product = Fp8Dot.apply(form, x, weight, scales, self._quantized[key], others)
        if position == 1 or not isinstance(op, Dot):
            return product
        batch, rows = len(op.batch[0]), len(op.free(x.type.ndim, weight.type.ndim)[0])
        last = range(batch + rows, product.type.ndim)
        return permute(product, (*range(batch), *last, *range(batch, batch + rows)))


def _with_programs(op: Op, inner: Sequence[_Plan], form: Callable[[Dot | GroupedDot, DType], Fp8Form]) -> Op:
    """Return an op whose programs are rewritten. The scales of all its programs are its last operands."""
    if isinstance(op, Cond):
        counts = [len(plan.selected) for plan in inner]
        types = [SCALES.with_shape((*product.stack, 3)) for plan in inner for product in plan.selected]
        branches = []
        for number, plan in enumerate(inner):
            first, width = sum(counts[:number]), len(plan.program.inputs)
            rewritten = _rewrite(plan, form)

            def body(*args: Any, rewritten: Program = rewritten, first: int = first, width: int = width) -> Any:
                own = args[width + first : width + first + len(rewritten.inputs) - width]
                return Call(rewritten)(*args[:width], *own)

            branches.append(rewrite(plan.program.name, [*plan.program.in_types, *types], body))
        return op.with_programs(branches)
    (plan,) = inner
    assert isinstance(op, (Scan, Remat))
    return replace(op, program=_rewrite(plan, form))
