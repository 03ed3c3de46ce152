"""conv: convolution of an array with a kernel.

Dims are named by characters, one per dim, as in `bi01, oi01 -> bo01`. A digit is a spatial dim, and the index of its
stride, padding and dilations. A letter of both operands is contracted. A letter of one operand and the result passes
through. A letter of all three is a batch of convolutions, such as the groups of a grouped convolution. vmap therefore
adds a letter, and derivatives are convolutions of the same form.

On a mesh each device receives the halo of its shard from its neighbours. If the kernel is longer than the result, as in
the derivative with respect to a kernel, the kernel is sharded too, and the results are partial.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.dtypes import DType, numpy_carrier, short_name
from shardwise.compiler.ir.jax_checks import check_divisible, check_unsharded
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    LocalContext,
    NumpyArray,
    Op,
    Primal,
    UndefinedPrimal,
    ignore_float_errors,
    known,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import DeviceIndex
from shardwise.compiler.ops.contract.dot import sums_in
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import NUMBERS
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension, halo_exchange
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape, Transpose, i64_array_attribute
from shardwise.compiler.ops.shape.slicing import Pad, Reverse, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Roles(NamedTuple):
    """Letters by role: of lhs and out, of all three, of lhs and rhs (contracted), of rhs and out."""

    batch: str
    groups: str
    summed: str
    features: str


_IMAGE_RANK = 4  # two spatial dims, the batch and the channels
_FEW_CHANNELS = 8  # cuDNN pads fewer


@final
@record
class Conv(Op):
    """A convolution.

    Attributes:
        lhs, rhs, out: the names of the dims of the array, the kernel and the result; see the module's docstring.
        strides: the stride of each spatial dim.
        low, high: the number of zeros before and after the array along each spatial dim.
        lhs_dilation, rhs_dilation: the distance between elements of the array and of the kernel.
        dtype: the dtype of the result.
        precision: the precision of each operand, as in XLA.
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

    def workspace_bytes(self, *types: ArrayType) -> int | None:
        """cuDNN copies both operands and the result if there are not two spatial dims, to make channels the last dim.

        Most algorithms for images that XLA's autotuner selects need no workspace. Those for gradients of kernels do if
        the dtype is f32: those of few channels copy both operands, and the others add the results of several cores.
        """
        x, kernel = types
        out = self.out_type(x, kernel)
        if x.ndim > _IMAGE_RANK or (x.ndim < _IMAGE_RANK and x.dtype.itemsize == 4):
            return x.nbytes + kernel.nbytes + out.nbytes
        if x.dtype.itemsize != 4 or self.out[0] == self.lhs[0]:
            return 0
        channels = [size for letter, size in zip(self.out, out.shape, strict=True) if not letter.isdigit()]
        return x.nbytes + kernel.nbytes if min(channels) <= _FEW_CHANNELS else None

    def copied_bytes(self, platform: str, *types: ArrayType) -> tuple[int, ...]:
        """cuDNN pads both ends of a dim alike. What one end has more is padded before, in a copy of the array.

        On CPU, channels are the last dim of the array, and the batch is the first. XLA transposes other arrays.
        """
        x, _ = types
        if platform == "cpu":
            is_transposed = self.lhs[-1] not in self.rhs or self.out[0] != self.lhs[0]
            wide = super().copied_bytes(platform, *types)
            return (
                tuple(max(size, type.nbytes) for size, type in zip(wide, types, strict=True)) if is_transposed else wide
            )
        if platform != "gpu" or self.low == self.high or max(self.lhs_dilation) > 1:
            return (0, 0)
        shape = list(x.shape)
        for dim, low, high in zip(self._spatial(self.lhs), self.low, self.high, strict=True):
            shape[dim] += abs(high - low)
        return (math.prod(shape) * x.dtype.itemsize, 0)

    def dilated_bytes(self, x: ArrayType, kernel: ArrayType) -> int:
        """Return the bytes of the copy of the array, with zeros between its elements, that cuDNN reads on GPUs.

        There is none for gradients: of an array, if `kernel` is reversed, and of a kernel.
        """
        if max(self.lhs_dilation) == 1 or self.out[0] != self.lhs[0]:
            return 0
        shape = list(x.shape)
        for dim, low, high, step in zip(self._spatial(self.lhs), self.low, self.high, self.lhs_dilation, strict=True):
            shape[dim] = low + (shape[dim] - 1) * step + 1 + high
        return math.prod(shape) * x.dtype.itemsize

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
        for dim, window in zip(self._spatial(self.lhs), self.windows(kernel), strict=True):
            window.check("conv", dim)
            sizes[self.lhs[dim]] = window.output_size(x.shape[dim])
        if x.dtype != kernel.dtype:
            raise TypeError(f"conv: operands must have one dtype, not {x} and {kernel}")
        if not NUMBERS.contains(x.dtype):
            raise TypeError(f"conv: needs {NUMBERS.description}, not {x}")
        if not sums_in(self.dtype, x.dtype):
            raise TypeError(f"conv: {short_name(self.dtype)} is too narrow for sums of products of {x}")
        return ArrayType(tuple(sizes[letter] for letter in self.out), self.dtype, x.weak and kernel.weak)

    def check_as_jax(self, x: ArrayType, kernel: ArrayType) -> None:
        check_unsharded(self.name, kernel, range(kernel.ndim))
        check_unsharded(self.name, x, [dim for dim, letter in enumerate(self.lhs) if letter not in self.out])
        sizes = dict(zip(self.out, self.out_type(x.plain, kernel.plain).shape, strict=True))
        shape = [sizes.get(letter, size) for letter, size in zip(self.lhs, x.shape, strict=True)]
        check_divisible(self.name, x, shape)

    def _check_names(self, x: ArrayType, kernel: ArrayType) -> None:
        for names, type in ((self.lhs, x), (self.rhs, kernel)):
            if len(names) != type.ndim:
                raise TypeError(f"conv: {names!r} names {len(names)} dims, but {type} has {type.ndim}")
        digits = [str(index) for index in range(len(self.strides))]
        all_names = (self.lhs, self.rhs, self.out)
        for names in all_names:
            if len(set(names)) != len(names) or sorted(filter(str.isdigit, names)) != digits:
                raise TypeError(
                    f"conv: dims must have distinct names, and {len(digits)} of them must be spatial, not {names!r}"
                )
        for letter in self.lhs + self.rhs + self.out:
            if sum(letter in names for names in all_names) < 2:
                raise TypeError(
                    f"conv: {letter!r} must be in two or three of {', '.join(map(repr, all_names))}, not in one"
                )
        lists = (self.low, self.high, self.lhs_dilation, self.rhs_dilation)
        if any(len(numbers) != len(digits) for numbers in lists):
            raise TypeError(f"conv: padding and dilations need {len(digits)} numbers, one per spatial dim, not {lists}")

    def _spatial(self, names: str) -> list[int]:
        """Return the spatial dims of an operand or the result, in the order of their digits."""
        return [names.index(str(index)) for index in range(len(self.strides))]

    def windows(self, kernel: ArrayType) -> list[WindowDimension]:
        """Return the window parameters of each spatial dim."""
        sizes = [kernel.shape[dim] for dim in self._spatial(self.rhs)]
        fields = (sizes, self.strides, self.low, self.high, self.lhs_dilation, self.rhs_dilation)
        return [WindowDimension(*numbers) for numbers in zip(*fields, strict=True)]

    def with_windows(self, windows: Sequence[WindowDimension]) -> "Conv":
        """Return the op with other window parameters."""
        columns = [tuple(window[i] for window in windows) for i in range(1, 6)]
        strides, low, high, lhs_dilation, rhs_dilation = columns
        return replace(self, strides=strides, low=low, high=high, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation)

    def _has_long_kernel(self, x: ArrayType, kernel: ArrayType) -> list[bool]:
        """Return, for each spatial dim, whether the kernel is longer than the result."""
        sizes = [x.shape[dim] for dim in self._spatial(self.lhs)]
        return [
            window.window > window.output_size(size) for window, size in zip(self.windows(kernel), sizes, strict=True)
        ]

    def factors(self, x: ArrayType, kernel: ArrayType) -> FactorRule:
        """Return the factors: letters first, then two for each spatial dim.

        The first factor of a spatial dim is shared by the array and the longer of kernel and result. The second factor
        belongs to the shorter, and needs replication.
        """
        out = self.out_type(x, kernel)
        sizes = {
            letter: size
            for names, type in ((self.lhs, x), (self.rhs, kernel))
            for letter, size in zip(names, type.shape, strict=True)
            if not letter.isdigit()
        }
        numbers = {letter: index for index, letter in enumerate(sizes)}
        tables = [dict(numbers) for _ in range(3)]  # name → factor, for lhs, rhs and out
        factor_sizes = list(sizes.values())
        reduced = {numbers[letter]: SUM for letter in self.roles.summed}
        need_replication, exchange = set(), set()
        long_kernels = self._has_long_kernel(x, kernel)
        for index, (window, long_kernel) in enumerate(zip(self.windows(kernel), long_kernels, strict=True)):
            shared, replicated = len(factor_sizes), len(factor_sizes) + 1
            pair = [kernel.shape[self.rhs.index(str(index))], out.shape[self.out.index(str(index))]]
            factor_sizes += pair if long_kernel else reversed(pair)
            tables[0][str(index)] = shared
            tables[1][str(index)], tables[2][str(index)] = (shared, replicated) if long_kernel else (replicated, shared)
            need_replication.add(replicated)
            if long_kernel:
                reduced[shared] = SUM
            if long_kernel or window != WindowDimension(1):
                exchange.add(shared)
        lhs, rhs, result = (
            tuple((table[letter],) for letter in names)
            for table, names in zip(tables, (self.lhs, self.rhs, self.out), strict=True)
        )
        return FactorRule(
            (lhs, rhs),
            (result,),
            tuple(factor_sizes),
            reduced,
            need_replication=frozenset(need_replication),
            exchange=frozenset(exchange),
        )

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        x, kernel = types
        letters = len({*self.lhs, *self.rhs}) - len(self.strides)
        number = (factor - letters) // 2
        dim = self._spatial(self.lhs)[number]
        window, size = self.windows(kernel)[number], x.shape[dim]
        if self._has_long_kernel(x, kernel)[number]:
            window = window.kernel_gradient(size)
        return window.halo(dim, (), count, -(-window.output_size(size) // count)).window.bytes_sent_of_array(x)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, kernel = operands
        if 0 in context.out_shapes[0]:
            return full(context.out_shapes[0], 0, self.dtype)
        windows = self.windows(context.global_types[1])
        sharded_kernel_dims = []
        for index, long_kernel in enumerate(self._has_long_kernel(*context.global_types)):
            dim, out_dim = self.lhs.index(str(index)), self.out.index(str(index))
            if long_kernel:
                sharded_kernel_dims += [index] if context.sharding_of(dim, 0)[0] else []
            elif windows[index] != WindowDimension(1) and context.sharding_of(out_dim)[0]:
                size, shard_size = context.global_types[0].shape[dim], context.out_shapes[0][out_dim]
                sharding = context.sharding_of(out_dim)
                x, windows[index] = halo_exchange(x, dim, size, windows[index], sharding, shard_size, 0)
        return self._partial_sum(context, x, kernel, windows, sharded_kernel_dims)

    def _partial_sum(
        self,
        context: LocalContext,
        x: Operand,
        kernel: Operand,
        windows: Sequence[WindowDimension],
        kernel_dims: Sequence[int],
    ) -> Any:
        """Return this device's term of the result if the kernel is sharded along the spatial dims `kernel_dims`.

        Zeros in the padding of the kernel must not be multiplied by unrelated elements of the array, because zero times
        infinity is NaN. If the kernel is sharded unevenly, the device with the last elements of the kernel therefore
        uses a shorter kernel, and devices past the end return zeros.
        """
        if not kernel_dims:
            return self.with_windows(windows)(x, kernel)
        number, *others = kernel_dims
        dim, kernel_dim = self.lhs.index(str(number)), self.rhs.index(str(number))
        sharding, shard_size = context.sharding_of(kernel_dim, 1), kernel.type.shape[kernel_dim]
        size, window_size = context.global_types[0].shape[dim], context.global_types[1].shape[kernel_dim]
        by_position = windows[number].kernel_gradient(size)
        halo, local = halo_exchange(x, dim, size, by_position, sharding, shard_size, 0)

        def term(positions: int) -> Any:
            """Return the term of the first `positions` positions of the kernel's shard."""
            high = local.high - local.stride * (shard_size - positions)
            term_windows = list(windows)
            term_windows[number] = WindowDimension(
                positions, local.window_dilation, local.low, high, local.base_dilation, local.stride
            )
            shorter = slice_along(kernel, kernel_dim, 0, positions)
            return self._partial_sum(context, halo, shorter, term_windows, others)

        full_shards, rest = divmod(window_size, shard_size)
        full_term = term(shard_size)
        if full_shards == sharding[1]:
            return full_term
        index = Expr(Broadcast(full_term.type.shape, ())(DeviceIndex(sharding[0])()))
        last = index.full_like(full_shards)
        zeros = Expr(zeros_like(full_term))
        other_terms = where(index == last, Expr(term(rest)), zeros) if rest else zeros
        return where(index < last, Expr(full_term), other_terms).array

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, kernel = operands
        if isinstance(x, UndefinedPrimal):
            return self._lhs_cotangent(cotangent, x.type, known(kernel)), None
        return None, self._rhs_cotangent(cotangent, x, kernel.type)

    def _lhs_cotangent(self, cotangent: Operand, x: ArrayType, kernel: Operand) -> Any:
        """Convolve the cotangent and the kernel, one of them reversed. The smaller one is this conv's kernel."""
        windows = list(zip(self._spatial(self.lhs), self.windows(kernel.type), strict=True))
        cotangent_size, kernel_size = (
            math.prod(y.type.shape[dim] for dim in self._spatial(names))
            for y, names in ((cotangent, self.out), (kernel, self.rhs))
        )
        if not cotangent.type.size:
            return full(x.shape, 0, x.dtype)
        if cotangent_size >= kernel_size:
            transposed = [window.transposed(x.shape[dim]) for dim, window in windows]
            op = self._with_names(self.out, self.rhs, self.lhs, transposed)
            return op._convert_and_apply(cotangent, _reverse(kernel, self._spatial(self.rhs)))
        transposed = [window.kernel_gradient(x.shape[dim]).transposed(x.shape[dim]) for dim, window in windows]
        op = self._with_names(self.rhs, self.out, self.lhs, transposed)
        return op._convert_and_apply(kernel, _reverse(cotangent, self._spatial(self.out)))

    def _rhs_cotangent(self, cotangent: Operand, x: Operand, kernel: ArrayType) -> Any:
        """Convolve the array with the cotangent as the kernel: one output for each position of the kernel."""
        if not cotangent.type.size:
            return full(kernel.shape, 0, kernel.dtype)
        sizes = [x.type.shape[dim] for dim in self._spatial(self.lhs)]
        by_position = [window.kernel_gradient(size) for window, size in zip(self.windows(kernel), sizes, strict=True)]
        return self._with_names(self.lhs, self.out, self.rhs, by_position)._convert_and_apply(x, cotangent)

    def _with_names(self, lhs: str, rhs: str, out: str, windows: Sequence[WindowDimension]) -> "Conv":
        """Return the op with other names of dims and window parameters."""
        return replace(self, lhs=lhs, rhs=rhs, out=out).with_windows(windows)

    def _convert_and_apply(self, x: Operand, kernel: Operand) -> Any:
        """Apply the op to operands of which the cotangent may have a wider dtype."""
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
        """The roles of the letters."""
        lhs, rhs, out = (list(filter(str.isalpha, names)) for names in (self.lhs, self.rhs, self.out))
        return Roles(
            "".join(letter for letter in lhs if letter not in rhs),
            "".join(letter for letter in lhs if letter in rhs and letter in out),
            "".join(letter for letter in lhs if letter not in out),
            "".join(letter for letter in rhs if letter not in lhs),
        )

    @property
    def has_batch_groups(self) -> bool:
        """Whether the groups are part of the batch in StableHLO, and not of the channels.

        They are if they are adjacent to the batch letters, as in the derivative of a kernel. No transpose is needed
        then.
        """
        batch, groups, summed, _ = self.roles
        return bool(groups) and groups + batch in self.lhs and groups + summed not in self.lhs

    def lower(self, hlo: Hlo, x: HloValue, kernel: HloValue) -> Any:
        """Merge the letters of each role into one dim for StableHLO. Groups are the major part of two of these dims."""
        out = self.out_type(x.type, kernel.type)
        if not (x.type.size and kernel.type.size and out.size):
            return hlo.constant(0, out)
        batch, groups, summed, features = self.roles
        spatial = {str(index): str(index) for index in range(len(self.strides))}
        by_batch = self.has_batch_groups
        lhs_parts = {"b": groups + batch, "f": summed} if by_batch else {"b": batch, "f": groups + summed}
        group_count = math.prod(x.type.shape[self.lhs.index(letter)] for letter in groups)
        x, lhs_order = _lower_merged_dims(hlo, x, self.lhs, {**lhs_parts, **spatial})
        rhs_parts = {"o": groups + features, "i": summed, **spatial}
        kernel, rhs_order = _lower_merged_dims(hlo, kernel, self.rhs, rhs_parts)
        out_parts = {"b": batch, "f": groups + features, **spatial}
        order, names = _merged_order(self.out, out_parts)
        sizes = dict(zip(self.out, out.shape, strict=True))
        merged = out.with_shape(tuple(math.prod(sizes[letter] for letter in out_parts[name]) for name in order))
        attributes = [
            *self._window_attributes(),
            f"dimension_numbers = #stablehlo.conv<[{lhs_order}]x[{rhs_order}]->[{', '.join(order)}]>",
            f"feature_group_count = {1 if by_batch else group_count} : i64",
            f"batch_group_count = {group_count if by_batch else 1} : i64",
            f"precision_config = [{', '.join(f'#stablehlo<precision {name}>' for name in self.precision)}]",
        ]
        result = hlo.op("stablehlo.convolution", (x, kernel), merged, ", ".join(attributes))
        split = Reshape(tuple(sizes[letter] for letter in names)).lower(hlo, result)
        permutation = tuple(names.index(letter) for letter in self.out)
        return split if permutation == tuple(range(out.ndim)) else Transpose(permutation).lower(hlo, split)

    def _window_attributes(self) -> list[str]:
        padding = [list(pair) for pair in zip(self.low, self.high, strict=True)]
        return [
            f"window_strides = {i64_array_attribute(self.strides)}",
            f"lhs_dilation = {i64_array_attribute(self.lhs_dilation)}",
            f"rhs_dilation = {i64_array_attribute(self.rhs_dilation)}",
            f"padding = dense<{padding or ''}> : tensor<{len(padding)}x2xi64>",
        ]

    @ignore_float_errors
    def reference(self, x: NumpyArray, kernel: NumpyArray) -> NumpyArray:
        """Sum, over the positions of the kernel, the products with the elements that each output reads."""
        out = self.out_type(ArrayType(x.shape, x.dtype), ArrayType(kernel.shape, kernel.dtype))
        windows = self.windows(ArrayType(kernel.shape, kernel.dtype))
        wide = numpy_carrier(self.dtype)
        low, high, interior = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
        for dim, window in zip(self._spatial(self.lhs), windows, strict=True):
            low[dim], high[dim], interior[dim] = window.low, window.high, window.base_dilation - 1
        padded = Pad(tuple(low), tuple(high), tuple(interior)).reference(x.astype(wide), np.zeros((), wide))
        to_letters = str.maketrans("0123456789", "ABCDEFGHIJ")  # einsum has no digits
        kernel_letters = "".join(filter(str.isalpha, self.rhs))
        subscripts = f"{self.lhs},{kernel_letters}->{self.out}".translate(to_letters)
        total = np.zeros(out.shape, wide)
        for position in np.ndindex(*(window.window for window in windows)) if out.size else ():
            x_index, kernel_index = [slice(None)] * x.ndim, [slice(None)] * kernel.ndim
            spatial = zip(self._spatial(self.lhs), self._spatial(self.rhs), windows, position, strict=True)
            for index, (dim, kernel_dim, window, p) in enumerate(spatial):
                first, outputs = p * window.window_dilation, out.shape[self.out.index(str(index))]
                x_index[dim] = slice(first, first + window.stride * (outputs - 1) + 1, window.stride)
                kernel_index[kernel_dim] = p
            total += np.einsum(subscripts, padded[tuple(x_index)], kernel.astype(wide)[tuple(kernel_index)])
        return total.astype(self.dtype)


def _reverse(x: Operand, dims: Sequence[int]) -> Any:
    reversed_dims = tuple(dim for dim in dims if x.type.shape[dim] > 1)
    return Reverse(reversed_dims)(x) if reversed_dims else x


def _merged_order(names: str, parts: dict[str, str]) -> tuple[list[str], str]:
    """Return an order of the merged dims, and the names of the unmerged dims in that order.

    The order of `names` is kept if the letters of each part are adjacent. Otherwise a transpose is needed.
    """
    if all(part in names for part in parts.values()):
        order = sorted(parts, key=lambda key: names.index(parts[key]) if parts[key] else -1)
        return order, names
    return list(parts), "".join(parts.values())


def _lower_merged_dims(hlo: Hlo, x: HloValue, names: str, parts: dict[str, str]) -> tuple[Any, str]:
    """Merge the dims of each part of `x` into one. Return the array, and the names of its dims for StableHLO."""
    order, ordered_names = _merged_order(names, parts)
    if ordered_names != names:
        x = Transpose(tuple(names.index(letter) for letter in ordered_names)).lower(hlo, x)
    sizes = dict(zip(ordered_names, x.type.shape, strict=True))
    shape = tuple(math.prod(sizes[letter] for letter in parts[key]) for key in order)
    return x if shape == x.type.shape else Reshape(shape).lower(hlo, x), ", ".join(order)
