"""conv: products of an array with a kernel that slides along its spatial dims, summed over the kernel.

Dims are named by characters, one for each, as in `bi01, oi01 -> bo01`. A digit is a spatial dim, and the number of its
stride, padding and dilations. A letter of both operands is summed over; one of an operand and the result passes
through; one of all three is a batch of convolutions, as are the groups of a grouped one. So vmap adds a letter, and
the derivatives are convolutions of the same kind.

On a mesh each device takes the rows around its piece from its neighbours. Where the kernel is the longer of kernel and
result, as in the derivative by a kernel, it is cut too, and the results are terms of a sum.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.dtypes import DType, numpy_carrier, short_name
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import DeviceIndex
from shardwise.compiler.ops.contract.dot import sums_in
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import NUMBERS, full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension, halo_exchange
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape, Transpose, i64_array_attribute
from shardwise.compiler.ops.shape.slicing import Pad, Reverse, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Roles(NamedTuple):
    """The letters that are passed through from the left, those of all three, those summed over, and the right's."""

    batch: str
    groups: str
    summed: str
    features: str


@final
@record
class Conv(Op):
    """`lhs`, `rhs` and `out` name the dims of the array, of the kernel and of the result; see this module's head.

    Along spatial dim t the kernel moves by `strides[t]`; `low[t]` and `high[t]` zeros are put around the array, whose
    elements are `lhs_dilation[t]` apart; those of the kernel are `rhs_dilation[t]` apart. `dtype` is the result's.
    """

    name = "conv"
    is_contraction = True
    lhs: str
    rhs: str
    out: str
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dtype: DType
    precision: tuple[str, str] = ("DEFAULT", "DEFAULT")

    def out_type(self, x: ArrayType, kernel: ArrayType) -> ArrayType:
        self._check_names(x, kernel)
        sizes: dict[str, int] = {}
        for names, type in ((self.lhs, x), (self.rhs, kernel)):
            for dim, (letter, size) in enumerate(zip(names, type.shape, strict=True)):
                if not letter.isdigit() and sizes.setdefault(letter, size) != size:
                    raise TypeError(
                        f"conv: dims {self.lhs.index(letter)} of {x} and {dim} of {kernel} must agree: both are "
                        f"{letter!r} in {self.lhs} and {self.rhs}"
                    )
        for dim, sliding in zip(self._spatial(self.lhs), self.slidings(kernel), strict=True):
            sliding.check("conv", dim)
            sizes[self.lhs[dim]] = sliding.output_size(x.shape[dim])
        if x.dtype != kernel.dtype:
            raise TypeError(f"conv: operands must have one dtype, not {x} and {kernel}")
        if not NUMBERS.contains(x.dtype):
            raise TypeError(f"conv: needs {NUMBERS.description}, not {x}")
        if not sums_in(self.dtype, x.dtype):
            raise TypeError(f"conv: {short_name(self.dtype)} is too narrow for sums of products of {x}")
        return ArrayType(tuple(sizes[letter] for letter in self.out), self.dtype, x.weak and kernel.weak)

    def _check_names(self, x: ArrayType, kernel: ArrayType) -> None:
        for names, type in ((self.lhs, x), (self.rhs, kernel)):
            if len(names) != type.ndim:
                raise TypeError(f"conv: {names!r} names {len(names)} dims, but {type} has {type.ndim}")
        digits = [str(number) for number in range(len(self.strides))]
        all_names = (self.lhs, self.rhs, self.out)
        for names in all_names:
            if len(set(names)) != len(names) or sorted(filter(str.isdigit, names)) != digits:
                raise TypeError(f"conv: each dim needs a name, and {len(digits)} of them are spatial, not {names!r}")
        for letter in self.lhs + self.rhs + self.out:
            if sum(letter in names for names in all_names) < 2:
                raise TypeError(f"conv: {letter!r} is in only one of {', '.join(map(repr, all_names))}")
        lists = (self.low, self.high, self.lhs_dilation, self.rhs_dilation)
        if any(len(numbers) != len(digits) for numbers in lists):
            raise TypeError(f"conv: needs a number for each of {len(digits)} spatial dims, not {lists}")

    def _spatial(self, names: str) -> list[int]:
        """The spatial dims of an operand or the result, in the order of their numbers."""
        return [names.index(str(number)) for number in range(len(self.strides))]

    def slidings(self, kernel: ArrayType) -> list[WindowDimension]:
        """How the kernel slides along each spatial dim."""
        windows = [kernel.shape[dim] for dim in self._spatial(self.rhs)]
        fields = (windows, self.strides, self.low, self.high, self.lhs_dilation, self.rhs_dilation)
        return [WindowDimension(*numbers) for numbers in zip(*fields, strict=True)]

    def over(self, slidings: Sequence[WindowDimension]) -> "Conv":
        """The same with other slidings."""
        columns = [tuple(sliding[i] for sliding in slidings) for i in range(1, 6)]
        strides, low, high, lhs_dilation, rhs_dilation = columns
        return replace(self, strides=strides, low=low, high=high, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation)

    def _is_long(self, x: ArrayType, kernel: ArrayType) -> list[bool]:
        """Along which spatial dims the kernel is longer than the result."""
        sizes = [x.shape[dim] for dim in self._spatial(self.lhs)]
        return [s.window > s.output_size(size) for s, size in zip(self.slidings(kernel), sizes, strict=True)]

    def factors(self, x: ArrayType, kernel: ArrayType) -> FactorRule:
        """Letters first; then for each spatial dim one that two of the three share, and one that stays whole."""
        out = self.out_type(x, kernel)
        sizes = {
            letter: size
            for names, type in ((self.lhs, x), (self.rhs, kernel))
            for letter, size in zip(names, type.shape, strict=True)
            if not letter.isdigit()
        }
        numbers = {letter: number for number, letter in enumerate(sizes)}
        tables = [dict(numbers) for _ in range(3)]  # of lhs, rhs and out
        extents = list(sizes.values())
        reduced = {numbers[letter]: SUM for letter in self.roles.summed}
        whole, exchanged = set(), set()
        for number, (sliding, is_long) in enumerate(zip(self.slidings(kernel), self._is_long(x, kernel), strict=True)):
            moved, kept = len(extents), len(extents) + 1
            ends = [kernel.shape[self.rhs.index(str(number))], out.shape[self.out.index(str(number))]]
            extents += ends if is_long else reversed(ends)
            tables[0][str(number)] = moved
            tables[1][str(number)], tables[2][str(number)] = (moved, kept) if is_long else (kept, moved)
            whole.add(kept)
            if is_long:
                reduced[moved] = SUM
            if is_long or sliding != WindowDimension(1):
                exchanged.add(moved)
        lhs, rhs, result = (
            tuple((table[letter],) for letter in names)
            for table, names in zip(tables, (self.lhs, self.rhs, self.out), strict=True)
        )
        return FactorRule(
            (lhs, rhs),
            (result,),
            tuple(extents),
            reduced,
            need_replication=frozenset(whole),
            exchange=frozenset(exchanged),
        )

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        x, kernel = types
        letters = len({*self.lhs, *self.rhs}) - len(self.strides)
        number = (factor - letters) // 2
        dim = self._spatial(self.lhs)[number]
        sliding, size = self.slidings(kernel)[number], x.shape[dim]
        if self._is_long(x, kernel)[number]:
            sliding = sliding.kernel_gradient(size)
        return sliding.halo(dim, (), count, -(-sliding.output_size(size) // count)).window.bytes_sent_of_array(x)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, kernel = operands
        if 0 in context.out_shapes[0]:
            return full(context.out_shapes[0], 0, self.dtype)
        slidings = self.slidings(context.global_types[1])
        long = []
        for number, is_long in enumerate(self._is_long(*context.global_types)):
            dim, at = self.lhs.index(str(number)), self.out.index(str(number))
            if is_long:
                long += [number] if context.sharding_of(dim, 0)[0] else []
            elif slidings[number] != WindowDimension(1) and context.sharding_of(at)[0]:
                size, piece = context.global_types[0].shape[dim], context.out_shapes[0][at]
                x, slidings[number] = halo_exchange(x, dim, size, slidings[number], context.sharding_of(at), piece, 0)
        return self._summed(context, x, kernel, slidings, long)

    def _summed(
        self, context: LocalContext, x: Any, kernel: Any, slidings: Sequence[WindowDimension], long: Sequence[int]
    ) -> Any:
        """This device's term of the sum, of which it has some positions of the kernel along the dims `long`.

        A zero in the kernel's padding would meet elements of the array that it has nothing to do with, and make NaN of
        an infinite one. So where the kernel is cut unevenly, the device whose piece ends early takes what a shorter
        kernel gives, and those past the end take nothing.
        """
        if not long:
            return self.over(slidings)(x, kernel)
        number, *others = long
        dim, at = self.lhs.index(str(number)), self.rhs.index(str(number))
        cut, piece = context.sharding_of(at, 1), kernel.type.shape[at]
        size, window = context.global_types[0].shape[dim], context.global_types[1].shape[at]
        near, over = halo_exchange(x, dim, size, slidings[number].kernel_gradient(size), cut, piece, 0)

        def term(positions: int) -> Any:
            mine = list(slidings)
            high = over.high - over.stride * (piece - positions)
            mine[number] = WindowDimension(
                positions, over.window_dilation, over.low, high, over.base_dilation, over.stride
            )
            return self._summed(context, near, slice_along(kernel, at, 0, positions), mine, others)

        whole, rest = divmod(window, piece)
        found = term(piece)
        if whole == cut[1]:
            return found
        index = Broadcast(found.type.shape, ())(DeviceIndex(cut[0])())
        ends = Select()(Compare("EQ")(index, full_like(index, whole)), term(rest), zeros_like(found)) if rest else None
        return Select()(
            Compare("LT")(index, full_like(index, whole)), found, zeros_like(found) if ends is None else ends
        )

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, kernel = operands
        if isinstance(x, UndefinedPrimal):
            return self._to_lhs(cotangent, x.type, kernel), None
        return None, self._to_rhs(cotangent, x, kernel.type)

    def _to_lhs(self, cotangent: Any, x: ArrayType, kernel: Any) -> Any:
        """A convolution of the cotangent and the kernel, one of them backwards: the smaller slides over the larger."""
        slidings = list(zip(self._spatial(self.lhs), self.slidings(kernel.type), strict=True))
        rows, positions = (
            math.prod(y.type.shape[dim] for dim in self._spatial(names))
            for y, names in ((cotangent, self.out), (kernel, self.rhs))
        )
        if not cotangent.type.size:
            return full(x.shape, 0, x.dtype)
        if rows >= positions:
            op = self._of(self.out, self.rhs, self.lhs, [s.transposed(x.shape[dim]) for dim, s in slidings])
            return op._product(cotangent, _backwards(kernel, self._spatial(self.rhs)))
        back = [s.kernel_gradient(x.shape[dim]).transposed(x.shape[dim]) for dim, s in slidings]
        op = self._of(self.rhs, self.out, self.lhs, back)
        return op._product(kernel, _backwards(cotangent, self._spatial(self.out)))

    def _to_rhs(self, cotangent: Any, x: Any, kernel: ArrayType) -> Any:
        """A convolution over the array with the cotangent as kernel: one result for each position."""
        if not cotangent.type.size:
            return full(kernel.shape, 0, kernel.dtype)
        sizes = [x.type.shape[dim] for dim in self._spatial(self.lhs)]
        by_position = [s.kernel_gradient(size) for s, size in zip(self.slidings(kernel), sizes, strict=True)]
        return self._of(self.lhs, self.out, self.rhs, by_position)._product(x, cotangent)

    def _of(self, lhs: str, rhs: str, out: str, slidings: Sequence[WindowDimension]) -> "Conv":
        """A convolution of other operands."""
        return replace(self, lhs=lhs, rhs=rhs, out=out).over(slidings)

    def _product(self, x: Any, kernel: Any) -> Any:
        """This of operands of which one, a cotangent, may be wider."""
        x, kernel = (y if y.type.dtype == self.dtype else Convert(self.dtype, y.type.weak)(y) for y in (x, kernel))
        return self(x, kernel)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        new = next(letter for letter in LETTERS if letter not in self.lhs + self.rhs + self.out)
        lhs, rhs = (
            names if dim is None else names[:dim] + new + names[dim:]
            for names, dim in zip((self.lhs, self.rhs), dims, strict=True)
        )
        return replace(self, lhs=lhs, rhs=rhs, out=new + self.out)(*operands), 0

    @property
    def roles(self) -> Roles:
        """What the letters are for."""
        lhs, rhs, out = (list(filter(str.isalpha, names)) for names in (self.lhs, self.rhs, self.out))
        return Roles(
            "".join(letter for letter in lhs if letter not in rhs),
            "".join(letter for letter in lhs if letter in rhs and letter in out),
            "".join(letter for letter in lhs if letter not in out),
            "".join(letter for letter in rhs if letter not in lhs),
        )

    def lower(self, hlo: Hlo, x: Any, kernel: Any) -> Any:
        """StableHLO has one dim of each role, and groups are the major part of two of them: ours are merged."""
        out = self.out_type(x.type, kernel.type)
        if not (x.type.size and kernel.type.size and out.size):
            return hlo.constant(0, out)
        batch, groups, summed, features = self.roles
        digits = [str(number) for number in range(len(self.strides))]
        # Where the groups lie next to what is passed through, as in the derivative by a kernel, nothing is moved.
        by_batch = bool(groups) and groups + batch in self.lhs and groups + summed not in self.lhs
        parts = {"b": groups + batch, "f": summed} if by_batch else {"b": batch, "f": groups + summed}
        count = math.prod(x.type.shape[self.lhs.index(letter)] for letter in groups)
        x, left = _merged(hlo, x, self.lhs, {**parts, **dict(zip(digits, digits, strict=True))})
        kernel, right = _merged(
            hlo, kernel, self.rhs, {"o": groups + features, "i": summed, **dict(zip(digits, digits, strict=True))}
        )
        found = {"b": batch, "f": groups + features, **dict(zip(digits, digits, strict=True))}
        order, names = _order(self.out, found)
        sizes = dict(zip(self.out, out.shape, strict=True))
        merged = out.with_shape(tuple(math.prod(sizes[letter] for letter in found[name]) for name in order))
        lists = {
            "window_strides": self.strides,
            "lhs_dilation": self.lhs_dilation,
            "rhs_dilation": self.rhs_dilation,
        }
        edges = [list(pair) for pair in zip(self.low, self.high, strict=True)]
        attributes = [
            *(f"{name} = {i64_array_attribute(values)}" for name, values in lists.items()),
            f"padding = dense<{edges or ''}> : tensor<{len(edges)}x2xi64>",
            f"dimension_numbers = #stablehlo.conv<[{left}]x[{right}]->[{', '.join(order)}]>",
            f"feature_group_count = {1 if by_batch else count} : i64",
            f"batch_group_count = {count if by_batch else 1} : i64",
            f"precision_config = [{', '.join(f'#stablehlo<precision {name}>' for name in self.precision)}]",
        ]
        result = hlo.op("stablehlo.convolution", (x, kernel), merged, ", ".join(attributes))
        split = Reshape(tuple(sizes[letter] for letter in names)).lower(hlo, result)
        moved = tuple(names.index(letter) for letter in self.out)
        return split if moved == tuple(range(len(moved))) else Transpose(moved).lower(hlo, split)

    @ignore_float_errors
    def reference(self, x: NumpyArray, kernel: NumpyArray) -> NumpyArray:
        """For each position of the kernel, what it meets at all places."""
        out = self.out_type(ArrayType(x.shape, x.dtype), ArrayType(kernel.shape, kernel.dtype))
        slidings = self.slidings(ArrayType(kernel.shape, kernel.dtype))
        wide = numpy_carrier(self.dtype)
        low, high, between = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
        for dim, sliding in zip(self._spatial(self.lhs), slidings, strict=True):
            low[dim], high[dim], between[dim] = sliding.low, sliding.high, sliding.base_dilation - 1
        padded = Pad(tuple(low), tuple(high), tuple(between)).reference(x.astype(wide), np.zeros((), wide))
        letters = str.maketrans("0123456789", "ABCDEFGHIJ")  # as einsum wants them
        kept = "".join(filter(str.isalpha, self.rhs))
        rule = f"{self.lhs},{kept}->{self.out}".translate(letters)
        total = np.zeros(out.shape, wide)
        for position in np.ndindex(*(sliding.window for sliding in slidings)) if out.size else ():
            seen, taken = [slice(None)] * x.ndim, [slice(None)] * kernel.ndim
            spatial = zip(self._spatial(self.lhs), self._spatial(self.rhs), slidings, position, strict=True)
            for number, (dim, at, sliding, p) in enumerate(spatial):
                first, places = p * sliding.window_dilation, out.shape[self.out.index(str(number))]
                seen[dim] = slice(first, first + sliding.stride * (places - 1) + 1, sliding.stride)
                taken[at] = p
            total += np.einsum(rule, padded[tuple(seen)], kernel.astype(wide)[tuple(taken)])
        return total.astype(self.dtype)


def _backwards(x: Any, dims: Sequence[int]) -> Any:
    turned = tuple(dim for dim in dims if x.type.shape[dim] > 1)
    return Reverse(turned)(x) if turned else x


def _order(names: str, parts: dict[str, str]) -> tuple[list[str], str]:
    """The parts in an order in which an array with dims of these names lies, and its names in that order.

    That is its own order, where the letters of each part are neighbours.
    """
    if all(part in names for part in parts.values()):
        order = sorted(parts, key=lambda key: names.index(parts[key]) if parts[key] else -1)
        return order, names
    return list(parts), "".join(parts.values())


def _merged(hlo: Hlo, x: Any, names: str, parts: dict[str, str]) -> tuple[Any, str]:
    """`x` with one dim for each part, and the names of these dims, in StableHLO."""
    order, moved = _order(names, parts)
    if moved != names:
        x = Transpose(tuple(names.index(letter) for letter in moved)).lower(hlo, x)
    sizes = dict(zip(moved, x.type.shape, strict=True))
    shape = tuple(math.prod(sizes[letter] for letter in parts[key]) for key in order)
    return x if shape == x.type.shape else Reshape(shape).lower(hlo, x), ", ".join(order)
