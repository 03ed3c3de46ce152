"""The discrete Fourier transform along one dim, and along several dims one after the other.

A transform needs all of its dim at once; other dims pass through. Where its dim is cut, whole rows are brought to
single devices and taken back. That is why there is one op a dim, and not one for several: the rows of one transform are
many even where the array is one image or one volume, so that nothing is gathered.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.whole_rows import RowExchange
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import DtypeSet, full_like
from shardwise.compiler.ops.elementwise.bitwise import Or
from shardwise.compiler.ops.elementwise.complex_parts import COMPLEX, COMPLEX_PARTS, Conj
from shardwise.compiler.ops.elementwise.select import Compare, Select, complex_part_type
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Transpose, i64_array_attribute
from shardwise.compiler.shardings.factors import FactorRule

INPUT_DTYPES: dict[str, DtypeSet] = {"FFT": COMPLEX, "IFFT": COMPLEX, "RFFT": COMPLEX_PARTS, "IRFFT": COMPLEX}


@final
@record
class Fft(Op):
    """The Fourier transform of the `length` numbers along `dim`: the sums of x[j] · exp(-2πi · jk / length) for all k.

    `kind` IFFT: with +2πi, and shared by `length`. RFFT: of real numbers, so that the first length // 2 + 1 sums say
    all. IRFFT: back from those to real numbers; of a sum that must be real, the imaginary part is ignored.
    """

    name = "fft"
    kind: str
    dim: int
    length: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if self.kind not in INPUT_DTYPES:
            raise TypeError(f"fft: kind {self.kind!r} is none of {', '.join(INPUT_DTYPES)}")
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"fft: dim {self.dim} does not exist in {x}")
        if not INPUT_DTYPES[self.kind].contains(x.dtype):
            raise TypeError(f"fft: {self.kind} needs {INPUT_DTYPES[self.kind].description}, not {x}")
        before, after = self.length, self.length
        if self.kind == "RFFT":
            after = self.length // 2 + 1
        if self.kind == "IRFFT":
            before = self.length // 2 + 1
        if self.length < 1 or x.shape[self.dim] != before:
            raise TypeError(
                f"fft: {self.kind} of length {self.length} needs {before} elements along dim {self.dim}, and at least "
                f"one, not {x}"
            )
        shape = (*x.shape[: self.dim], after, *x.shape[self.dim + 1 :])
        if self.kind == "RFFT":
            return ArrayType(shape, np.complex64 if x.dtype == np.float32 else np.complex128, x.weak)
        return (complex_part_type(x) if self.kind == "IRFFT" else x).with_shape(shape)

    def factors(self, x: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(x.ndim))
        return FactorRule((dims,), (dims,), x.shape, exchange=frozenset({self.dim}))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        (x,) = types
        before, after = (-(-type.shape[self.dim] // count) * type.dtype.itemsize for type in (x, self.out_type(x)))
        return RowExchange.of(x.shape, self.dim, (), count).bytes_sent(before, after)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(x)
        piece = context.out_shapes[0]
        rows = RowExchange.of(piece, self.dim, axes, count)
        found = Fft(self.kind, 1, self.length)(rows.gather(x, context.global_types[0].shape[self.dim]))
        return rows.scatter(found, piece[self.dim])

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        """Of the sums over all numbers, themselves: their matrix is symmetric. Of half of them, the way back, where
        each that stands for two is weighed as such.
        """
        if self.kind == "RFFT":
            halved = Mul()(Conj()(cotangent), self._weights(cotangent, self.length, self.length / 2))
            return (Fft("IRFFT", self.dim, self.length)(halved),)
        if self.kind == "IRFFT":
            sums = Conj()(Fft("RFFT", self.dim, self.length)(cotangent))
            return (Mul()(sums, self._weights(sums, 1 / self.length, 2 / self.length)),)
        return (self(cotangent),)

    def _weights(self, sums: Any, alone: float, twin: float) -> Any:
        """`alone` for the sums that stand for themselves, `twin` for those that stand for their conjugates too."""
        place = Iota(sums.type.shape, self.dim, np.dtype(np.int32))()
        is_alone = Compare("EQ")(place, full_like(place, 0))
        if self.length % 2 == 0:
            is_alone = Or()(is_alone, Compare("EQ")(place, full_like(place, self.length // 2)))
        return Select()(is_alone, full_like(sums, alone), full_like(sums, twin))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return Fft(self.kind, self.dim + 1, self.length)(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        if not x.type.size:
            return hlo.constant(0, out)
        # StableHLO transforms the last dim: the two trade places, and back.
        swapped = list(range(x.type.ndim))
        swapped[self.dim], swapped[-1] = swapped[-1], swapped[self.dim]
        swap = Transpose(tuple(swapped))
        is_last = self.dim == x.type.ndim - 1
        moved = x if is_last else swap.lower(hlo, x)
        attributes = f"fft_type = #stablehlo<fft_type {self.kind}>, fft_length = {i64_array_attribute((self.length,))}"
        found = hlo.op("stablehlo.fft", (moved,), out if is_last else swap.out_type(out), attributes)
        return found if is_last else swap.lower(hlo, found)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> Any:
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        found = getattr(np.fft, self.kind.lower())(wide, self.length, self.dim)
        return found.astype(self.out_type(ArrayType(x.shape, x.dtype)).dtype)
