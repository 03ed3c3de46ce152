"""gpu_program: a program as XLA compiles it for GPUs, before it forms kernels.

Products that share an operand, such as those with the weights of queries, keys and values, are one product with the
concatenation of their other operands, and slices of its result. XLA merges two products if neither depends on the
other, and both are small. The result of the merged product is live until the last slice of it is read.

Sums and products of narrow floats are scattered in f32, into zeros in f32, and rounded, as the op is lowered.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from shardwise.compiler.dtypes import DType, accumulation_dtype
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Slice
from shardwise.compiler.partition.product_shape import is_outer_product
from shardwise.compiler.reduction import PROD, SUM
from shardwise.compiler.transforms.merge_equal import merge_equal

_SMALL = 64 << 20  # the most bytes of the other operand and the result of a small product

Shape = tuple[int, ...]


@verifies_result
def gpu_program(program: Program) -> Program:
    """Return a program with the ops that XLA compiles for GPUs; `program` itself if they are those that it has."""
    return _with_merged_products(merge_equal(_with_wide_scatters(program), _mergeable))


def _with_wide_scatters(program: Program) -> Program:
    producers = program.producers()
    changed = False
    equations: list[Equation] = []
    for equation in program.equations:
        op = equation.op.map_programs(_with_wide_scatters)
        changed |= op is not equation.op
        current = equation if op is equation.op else equation.replace(op=op)
        wide = _dtype_of_scatter(equation)
        if wide is None:
            equations.append(current)
        else:
            changed = True
            equations += _scattered_in(wide, current, producers)
    return program.with_equations(equations) if changed else program


def _dtype_of_scatter(equation: Equation) -> DType | None:
    """Return the wider dtype in which a scatter is lowered; None for other equations."""
    op = equation.op
    if not isinstance(op, Scatter) or op.combine not in (SUM, PROD) or op.unique:
        return None
    dtype = equation.outputs[0].type.dtype
    wide = accumulation_dtype(dtype)
    return None if wide == dtype or op.has_one_window(equation.inputs[1].type) else wide


def _scattered_in(dtype: DType, equation: Equation, producers: Mapping[Value, Equation]) -> list[Equation]:
    """Return the equations of a scatter that is computed in another dtype."""
    x, indices, updates = equation.inputs
    (rounded,) = equation.outputs
    result, wide_x, wide_updates = [Value(value.type.update(dtype=dtype)) for value in (rounded, x, updates)]
    constant = producers[x].op if x in producers else None
    if isinstance(constant, Full):
        full = Full(constant.shape, Scalar.from_value(constant.value.array.item(), dtype), constant.weak)
        first = equation.replace(op=full, inputs=(), outputs=(wide_x,))
    else:
        first = equation.replace(op=Convert(dtype, x.type.weak), inputs=(x,), outputs=(wide_x,))
    return [
        first,
        equation.replace(op=Convert(dtype, updates.type.weak), inputs=(updates,), outputs=(wide_updates,)),
        equation.replace(inputs=(wide_x, indices, wide_updates), outputs=(result,)),
        equation.replace(op=Convert(rounded.type.dtype, rounded.type.weak), inputs=(result,)),
    ]


def _mergeable(program: Program) -> set[Equation]:
    """Return the products, and the equations behind them, that XLA merges with equal ones.

    It merges others, too, but computes most of them again in each kernel that reads them.
    """
    behind: set[Value] = set()
    constant: set[Value] = set()  # XLA computes them when it compiles
    mergeable: set[Equation] = set()
    for equation in program.equations:
        op = equation.op
        if op.is_contraction or not behind.isdisjoint(equation.inputs):
            behind.update(equation.outputs)
            if op.is_contraction or op.is_elementwise or op.reduced_dims is not None:
                mergeable.add(equation)
        if op.is_constant or (equation.inputs and constant.issuperset(equation.inputs) and not op.effect):
            constant.update(equation.outputs)
            mergeable.add(equation)
        if op.only_moves:
            mergeable.add(equation)
    return mergeable


def _with_merged_products(program: Program) -> Program:
    groups = _merged_products(program)
    changed = bool(groups)
    equations: list[Equation] = []
    for equation in program.equations:
        op = equation.op.map_programs(_with_merged_products)
        changed |= op is not equation.op
        equations.append(equation if op is equation.op else equation.replace(op=op))
    if not changed:
        return program
    return program.with_equations(_in_order(_with_merged(equations, groups), program.inputs))


class _Matrices(NamedTuple):
    """How a product reads an operand as matrices.

    Attributes:
        root: the value whose elements the operand has, in the same order.
        shape: the sizes of the batch, of the free dims, and of the contracting ones, in the order of the operand.
        contracted: the index of the contracting dim in `shape`.
        is_vector: whether there are no free dims.
    """

    root: Value
    shape: Shape
    contracted: int
    is_vector: bool

    @property
    def free(self) -> int:
        """The index of the free dim in `shape`."""
        return 3 - self.contracted


@final
@dataclass(eq=False)
class _Product:
    """A product, or several merged ones.

    Attributes:
        equations: the products.
        operands: how each reads its operands.
        bytes: those of the operands and of the result.
        members: the positions of the equations in the program, as bits.
        ancestors: the positions of all equations that they depend on, as bits.
    """

    equations: list[Equation]
    operands: list[tuple[_Matrices, _Matrices]]
    bytes: int
    members: int
    ancestors: int


def _merged_products(program: Program) -> list[tuple[int, _Product]]:
    """Return the merged products of a program, each with the index of the operand that its products share."""
    places = _places(program)
    shared: dict[tuple[Any, ...], list[_Product]] = defaultdict(list)
    products = [product for product in _products(program) if len(product.equations) == 1]
    for product in products:
        ((left, right),) = product.operands
        op = product.equations[0].op
        assert isinstance(op, Dot)
        for side, (same, differing) in enumerate(((left, right), (right, left))):
            if not (same.is_vector or differing.is_vector):
                key = (side, *same, differing.contracted, op.dtype, op.precision)
                shared[key].append(product)
    merged: list[tuple[int, _Product]] = []
    dead: set[_Product] = set()
    for key in sorted(shared, key=lambda key: places[key[1]]):
        group = [product for product in shared[key] if product not in dead]
        while group:
            first, rest = group[0], []
            for other in group[1:]:
                if _can_merge(first, other, key[0]):
                    dead.update((first, other))
                    first = _merge(first, other, key[0], products)
                    products.append(first)
                else:
                    rest.append(other)
            if first is not group[0]:
                merged.append((key[0], first))
            group = rest
    return merged


def _places(program: Program) -> dict[Value, tuple[int, int]]:
    """Return where XLA has each value: an input is where it is read first, before the equation that reads it."""
    places: dict[Value, tuple[int, int]] = {}
    for place, equation in enumerate(program.equations):
        for index, value in enumerate(equation.inputs):
            places.setdefault(value, (place, index))
        places.update(dict.fromkeys(equation.outputs, (place, len(equation.inputs))))
    return places


def _products(program: Program) -> Iterator[_Product]:
    roots: dict[Value, Value] = {}
    ancestors: dict[Value, int] = {}
    for place, equation in enumerate(program.equations):
        depends = 0
        for value in equation.inputs:
            depends |= ancestors.get(value, 0)
        ancestors.update(dict.fromkeys(equation.outputs, depends | 1 << place))
        if isinstance(equation.op, Reshape):
            roots[equation.outputs[0]] = roots.get(equation.inputs[0], equation.inputs[0])
        if not isinstance(equation.op, Dot) or is_outer_product(equation):
            continue
        operands = [_matrices(equation, side, roots) for side in (0, 1)]
        if operands[0] is not None and operands[1] is not None:
            nbytes = sum(value.type.nbytes for value in (*equation.inputs, *equation.outputs))
            yield _Product([equation], [(operands[0], operands[1])], nbytes, 1 << place, depends)


def _matrices(equation: Equation, side: int, roots: dict[Value, Value]) -> _Matrices | None:
    """Return how a product reads an operand; None if XLA transposes that first."""
    op, value = equation.op, equation.inputs[side]
    assert isinstance(op, Dot)
    free = op.free(*[value.type.ndim for value in equation.inputs])[side]
    batch, contract = op.batch[side], op.contract[side]
    order = tuple(range(value.type.ndim))
    if order not in ((*batch, *free, *contract), (*batch, *contract, *free)):
        return None
    last = order == (*batch, *free, *contract)
    sizes = [math.prod([value.type.shape[dim] for dim in dims]) for dims in (batch, free, contract)]
    shape = (sizes[0], sizes[1], sizes[2]) if last else (sizes[0], sizes[2], sizes[1])
    return _Matrices(roots.get(value, value), shape, 2 if last else 1, not free)


def _can_merge(first: _Product, other: _Product, side: int) -> bool:
    shared = first.equations[0].inputs[side].type.nbytes
    if max(first.bytes, other.bytes) - shared > _SMALL:
        return False
    return not (first.members & other.ancestors or other.members & first.ancestors)


def _merge(first: _Product, other: _Product, side: int, products: Sequence[_Product]) -> _Product:
    """Return two products as one, on which all products depend that depended on either."""
    operand = other.equations[0].inputs[side]
    merged = _Product(
        first.equations + other.equations,
        first.operands + other.operands,
        first.bytes + other.bytes - operand.type.nbytes,
        first.members | other.members,
        first.ancestors | other.ancestors,
    )
    for product in products:
        if product.ancestors & merged.members:
            product.ancestors |= merged.members | merged.ancestors
    return merged


def _with_merged(equations: list[Equation], groups: Sequence[tuple[int, _Product]]) -> list[Equation]:
    """Return equations with each group of products as one product, in the place of the last of them."""
    last = {product.equations[-1]: (side, product) for side, product in groups}
    dropped = {equation for _, product in groups for equation in product.equations}
    result: list[Equation] = []
    for equation in equations:
        if equation in last:
            result += _as_one(*last[equation])
        elif equation not in dropped:
            result.append(equation)
    return result


def _as_one(side: int, product: _Product) -> list[Equation]:
    """Return the equations of a merged product: the concatenation, the product, and a slice for each result."""
    equations: list[Equation] = []
    current = product.equations[0]

    def apply(op: Op, *operands: Value) -> Value:
        (type,) = result_types(op, tuple([value.type for value in operands]))
        if isinstance(op, Reshape) and type.shape == operands[0].type.shape:
            return operands[0]
        equations.append(current.replace(op=op, inputs=operands, outputs=[Value(type)]))
        return equations[-1].outputs[0]

    same = product.operands[0][side]
    others = [operands[1 - side] for operands in product.operands]
    parts = [apply(Reshape(other.shape), other.root) for other in others]
    joined = apply(Concatenate(others[0].free), *parts)
    matrices = [apply(Reshape(same.shape), same.root), joined]
    dims = [(matrix.contracted,) for matrix in product.operands[0]]
    op = current.op
    assert isinstance(op, Dot)
    if side:
        matrices.reverse()
    result = apply(Dot((dims[0], dims[1]), ((0,), (0,)), op.dtype, op.precision), *matrices)
    start = 0
    for current, other in zip(product.equations, others, strict=True):
        first, limit = [0, 0, 0], list(result.type.shape)
        first[2 - side], limit[2 - side] = start, start + other.shape[other.free]
        start = limit[2 - side]
        part = apply(Slice(tuple(first), tuple(limit), (1, 1, 1)), result)
        (output,) = current.outputs
        equations.append(current.replace(op=Reshape(output.type.shape), inputs=(part,)))
    return equations


def _in_order(equations: Sequence[Equation], inputs: Sequence[Value]) -> list[Equation]:
    """Return equations, each behind those whose results it reads."""
    known = set(inputs)
    waiting: dict[Value, list[Equation]] = defaultdict(list)
    result: list[Equation] = []
    for equation in equations:
        pending = [equation]
        while pending:
            ready = pending.pop()
            missing = next((value for value in ready.inputs if value not in known), None)
            if missing is not None:
                waiting[missing].append(ready)
                continue
            result.append(ready)
            known.update(ready.outputs)
            for value in ready.outputs:
                pending += waiting.pop(value, [])[::-1]
    return result
