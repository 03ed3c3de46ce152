"""The discrete Fourier transform along one dim. Transforms along several dims apply one op per dim.

If the transformed dim is sharded, one all-to-all moves complete rows to single devices, and another restores the
layout. With one op per dim, even a single image or volume has enough rows for this, and no all-gather is needed.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.whole_rows import RowExchange
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.elementwise.complex_parts import COMPLEX, COMPLEX_PARTS, Conj
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.select import complex_part_type
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Transpose, i64_array_attribute
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.traffic import Traffic

INPUT_DTYPES: dict[str, DtypeSet] = {"FFT": COMPLEX, "IFFT": COMPLEX, "RFFT": COMPLEX_PARTS, "IRFFT": COMPLEX}


@final
@record
class Fft(Op):
    """Discrete Fourier transform along `dim`: output k is the sum of x[j] · exp(-2πi · jk / length) over j.

    `kind` is one of XLA's four kinds. FFT is the forward transform. IFFT is its inverse: it has +2πi and divides by
    `length`. RFFT transforms real numbers and returns the first length // 2 + 1 outputs, which determine the others.
    IRFFT is its inverse; it ignores the imaginary parts of inputs that must be real.
    """

    name = "fft"
    kind: str
    dim: int
    length: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if self.kind not in INPUT_DTYPES:
            raise TypeError(f"fft: kind must be one of {', '.join(INPUT_DTYPES)}, not {self.kind!r}")
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"fft: dim {self.dim} does not exist in {x}")
        if not INPUT_DTYPES[self.kind].contains(x.dtype):
            raise TypeError(f"fft: {self.kind} needs {INPUT_DTYPES[self.kind].description}, not {x}")
        in_size, out_size = self.length, self.length
        if self.kind == "RFFT":
            out_size = self.length // 2 + 1
        if self.kind == "IRFFT":
            in_size = self.length // 2 + 1
        if self.length < 1 or x.shape[self.dim] != in_size:
            raise TypeError(
                f"fft: {self.kind} of length {self.length} needs {in_size} elements along dim {self.dim}, and at least "
                f"one, not {x}"
            )
        shape = (*x.shape[: self.dim], out_size, *x.shape[self.dim + 1 :])
        if self.kind == "RFFT":
            return ArrayType(shape, np.complex64 if x.dtype == np.float32 else np.complex128, x.weak)
        return (complex_part_type(x) if self.kind == "IRFFT" else x).with_shape(shape)

    def factors(self, x: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(x.ndim))
        return FactorRule((dims,), (dims,), x.shape, exchange=frozenset({self.dim}))

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        (x,) = types
        types = (x, self.out_type(x))
        in_bytes, out_bytes = (-(-type.shape[self.dim] // count) * type.dtype.itemsize for type in types)
        return RowExchange.from_shape(x.shape, self.dim, (), count).traffic(in_bytes, out_bytes)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(x)
        local_shape = context.out_shapes[0]
        exchange = RowExchange.from_shape(local_shape, self.dim, axes, count)
        rows = exchange.gather(x, context.global_types[0].shape[self.dim])
        return exchange.scatter(Fft(self.kind, 1, self.length)(rows), local_shape[self.dim])

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        """Transpose FFT and IFFT to themselves, because their matrices are symmetric, and RFFT and IRFFT to each other.

        RFFT and IRFFT weight each element of the half spectrum, because most of them represent a conjugate pair.
        """
        if self.kind == "RFFT":
            weighted = Conj()(cotangent) * self._spectrum_weights(cotangent, self.length, self.length / 2)
            return (Fft("IRFFT", self.dim, self.length)(weighted),)
        if self.kind == "IRFFT":
            spectrum = Conj()(Fft("RFFT", self.dim, self.length)(cotangent))
            return (spectrum * self._spectrum_weights(spectrum, 1 / self.length, 2 / self.length),)
        return (self(cotangent),)

    def _spectrum_weights(self, spectrum: Operand, single: float, pair: float) -> Any:
        """Return weights for a half spectrum: `pair` for elements that represent a conjugate pair, `single` for others.

        Element 0 is single, and so is the Nyquist element of an even length.
        """
        index = Expr(Iota(spectrum.type.shape, self.dim, np.dtype(np.int32))())
        is_single = index == 0
        if self.length % 2 == 0:
            is_single = is_single | (index == self.length // 2)
        return where(is_single, Expr(spectrum).full_like(single), pair).array

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return Fft(self.kind, self.dim + 1, self.length)(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out = self.out_type(x.type)
        if not x.type.size:
            return hlo.constant(0, out)
        # StableHLO transforms only the last dim, so swap it with `dim` before and after.
        swapped = list(range(x.type.ndim))
        swapped[self.dim], swapped[-1] = swapped[-1], swapped[self.dim]
        swap = Transpose(tuple(swapped))
        is_last = self.dim == x.type.ndim - 1
        operand = x if is_last else swap.lower(hlo, x)
        attributes = f"fft_type = #stablehlo<fft_type {self.kind}>, fft_length = {i64_array_attribute((self.length,))}"
        result = hlo.op("stablehlo.fft", (operand,), out if is_last else swap.out_type(out), attributes)
        return result if is_last else swap.lower(hlo, result)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> Any:
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        result = getattr(np.fft, self.kind.lower())(wide, self.length, self.dim)
        return result.astype(self.out_type(ArrayType(x.shape, x.dtype)).dtype)
