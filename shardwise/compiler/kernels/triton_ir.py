"""A builder of Triton IR, the input of the Triton compiler that XLA contains, as text.

A kernel runs many programs side by side, each with its own `program_id`. A program computes with blocks: arrays whose
sizes are powers of two. The operators of a block broadcast as numpy's do, for blocks of equal rank and for numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_float8
from shardwise.compiler.ir.types import ArrayType

I1, I8, I32, I64 = np.dtype(np.bool_), np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64)
F32 = np.dtype(np.float32)
SPLIT_PRODUCTS = 128
_NAMES: dict[DType, str] = {
    I1: "i1",
    I8: "i8",
    np.dtype(np.int16): "i16",
    I32: "i32",
    I64: "i64",
    np.dtype(np.uint8): "i8",  # integers have no sign in the IR, but ops do
    np.dtype(np.uint16): "i16",
    np.dtype(np.uint32): "i32",
    np.dtype(np.uint64): "i64",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    F32: "f32",
    np.dtype(ml_dtypes.float8_e4m3fn): "f8E4M3FN",
    np.dtype(ml_dtypes.float8_e5m2): "f8E5M2",
}
# Instructions of PTX. `ftz`: numbers below 2**-126 are zero, which saves three instructions around each of these.
EXP2, RECIPROCAL = "ex2.approx.ftz.f32 $0, $1;", "rcp.approx.ftz.f32 $0, $1;"
PACKING = {
    dtype: "{ .reg .b16 low, high; "
    f"cvt.rn.satfinite.{name}x2.f32 low, $2, $1; cvt.rn.satfinite.{name}x2.f32 high, $4, $3; "
    "mov.b32 $0, {low, high}; }"
    for dtype, name in ((np.dtype(ml_dtypes.float8_e4m3fn), "e4m3"), (np.dtype(ml_dtypes.float8_e5m2), "e5m2"))
}


def supports_dtype(dtype: DType) -> bool:
    """Return whether the kernels of this package can load and store elements of a dtype."""
    return dtype in _NAMES and dtype.kind not in "bu" and dtype != np.int16


def has_blocks(dtype: DType) -> bool:
    """Return whether there are blocks of a dtype."""
    return dtype in _NAMES


def pointer_elements(dtype: DType) -> tuple[str, ...]:
    """Return how Triton IR may name the elements of an array: integers have no sign, and booleans are bytes."""
    if is_float(dtype):
        return (_NAMES.get(dtype, f"f{8 * dtype.itemsize}"),)
    return ("i1", "i8") if dtype == I1 else (f"i{8 * dtype.itemsize}",)


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


@final
@dataclass(frozen=True, eq=False)
class Pointer:
    """The address of an array's element, in a kernel."""

    builder: "TritonBuilder"
    name: str
    dtype: DType

    def advance(self, offset: "Block") -> "Pointer":
        """Return the address of the element that is `offset`, a block without dims, further."""
        return Pointer(self.builder, self.builder._add_offset(self.name, self.dtype, offset), self.dtype)

    def bitcast(self, dtype: DType) -> "Pointer":
        """Return the address as that of elements of another dtype."""
        types = (f"!tt.ptr<{_NAMES[each]}>" for each in (self.dtype, dtype))
        return Pointer(self.builder, self.builder._emit(f"tt.bitcast {self.name} : {' -> '.join(types)}"), dtype)


@final
@dataclass(frozen=True, eq=False)
class Block:
    """A value of a program: a block of elements, or one element if `shape` is empty."""

    builder: "TritonBuilder"
    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def type(self) -> str:
        return _block_type(self.shape, _NAMES[self.dtype])

    def __add__(self, other: "Block | float") -> "Block":
        return self.builder.arithmetic("add", self, other)

    def __sub__(self, other: "Block | float") -> "Block":
        return self.builder.arithmetic("sub", self, other)

    def __mul__(self, other: "Block | float") -> "Block":
        return self.builder.arithmetic("mul", self, other)

    def __truediv__(self, other: "Block | float") -> "Block":
        return self.builder.arithmetic("div", self, other)

    def __rsub__(self, other: float) -> "Block":
        return self.builder.arithmetic("sub", self.builder.full((), other, self.dtype), self)

    def __floordiv__(self, other: "Block | int") -> "Block":
        """Divide integers, and drop the fraction."""
        return self.builder.arithmetic("divs", self, other)

    def __mod__(self, other: "Block | int") -> "Block":
        """Return the remainder of `//`."""
        return self.builder.arithmetic("rems", self, other)

    def __and__(self, other: "Block") -> "Block":
        return self.builder.arithmetic("and", self, other)

    def __or__(self, other: "Block") -> "Block":
        return self.builder.arithmetic("or", self, other)

    def __lt__(self, other: "Block | float") -> "Block":
        return self.builder.compare("lt", self, other)

    def __le__(self, other: "Block | float") -> "Block":
        return self.builder.compare("le", self, other)

    def __gt__(self, other: "Block | float") -> "Block":
        return self.builder.compare("gt", self, other)

    def __ge__(self, other: "Block | float") -> "Block":
        return self.builder.compare("ge", self, other)

    def equals(self, other: "Block | float") -> "Block":
        """Return where the elements of two blocks are equal."""
        return self.builder.compare("eq", self, other)

    def differs(self, other: "Block | float") -> "Block":
        """Return where the elements of two blocks are not equal."""
        return self.builder.compare("ne", self, other)

    def expand(self, axis: int) -> "Block":
        """Insert a dim of size 1."""
        return self.builder._expand(self, axis)

    def broadcast_to(self, shape: tuple[int, ...]) -> "Block":
        """Broadcast an element, or a block of the rank of `shape`."""
        return self.builder._broadcast(self, shape)

    def reshape(self, shape: tuple[int, ...]) -> "Block":
        """Return the elements in row-major order as a block of another shape."""
        return self.builder._reshape(self, shape)

    def transpose(self, order: tuple[int, ...]) -> "Block":
        """Permute the dims: dim i of the result is dim `order[i]`."""
        return self.builder._transpose(self, order)

    def to(self, dtype: DType) -> "Block":
        """Convert the elements. Floats are rounded to the nearest, and those that become integers are truncated."""
        return self.builder._convert(self, dtype)

    def sum(self, axis: int) -> "Block":
        """Sum along a dim."""
        return self.builder.reduce("addf" if is_float(self.dtype) else "addi", self, axis)

    def max(self, axis: int) -> "Block":
        """Return the maximum along a dim. NaN is left out."""
        return self.builder.reduce("maxnumf" if is_float(self.dtype) else "maxsi", self, axis)

    def min(self, axis: int) -> "Block":
        """Return the minimum along a dim. NaN is left out."""
        return self.builder.reduce("minnumf" if is_float(self.dtype) else "minsi", self, axis)


@final
class TritonBuilder:
    """Builds one kernel, whose parameters are the addresses of its operands and results.

    Attributes:
        pointers: the parameters.
    """

    def __init__(self, name: str, arrays: Sequence[ArrayType]):
        self.name = name
        self.pointers = [Pointer(self, f"%p{index}", type.dtype) for index, type in enumerate(arrays)]
        self._lines: list[str] = []
        self._count = 0
        self._depth = 2

    def text(self) -> str:
        """Return the module."""
        parameters = ", ".join(
            f"{pointer.name}: !tt.ptr<{_NAMES[pointer.dtype]}> {{tt.divisibility = 16 : i32}}"
            for pointer in self.pointers
        )
        header = f"module {{\n  tt.func public @{self.name}({parameters}) attributes {{noinline = false}} {{\n"
        return header + "\n".join(self._lines) + "\n    tt.return\n  }\n}\n"

    def program_id(self, axis: int = 0) -> Block:
        """Return the index of this program along an axis of the grid."""
        return Block(self, self._emit(f"tt.get_program_id {'xyz'[axis]} : i32"), (), I32)

    def range(self, size: int) -> Block:
        """Return the integers from 0 to `size`, a power of two."""
        text = f"tt.make_range {{end = {size} : i32, start = 0 : i32}} : {_block_type((size,), 'i32')}"
        return Block(self, self._emit(text), (size,), I32)

    def full(self, shape: tuple[int, ...], number: float, dtype: DType) -> Block:
        """Return a block whose elements are equal to a number."""
        literal = _literal(number, dtype)
        block = Block(self, "", shape, dtype)
        body = f"dense<{literal}> : {block.type}" if shape else literal if dtype == I1 else f"{literal} : {block.type}"
        return Block(self, self._emit(f"arith.constant {body}"), shape, dtype)

    def load(
        self,
        pointer: Pointer,
        offsets: Block,
        mask: Block | None = None,
        other: Block | float = 0.0,
        eviction: str = "",
    ) -> Block:
        """Load the elements at offsets from an address; `other` where the mask is False.

        `eviction` is "evict_first" or "evict_last", a hint when the cache may drop the elements.
        """
        address = self._addresses(pointer, offsets)
        type = _block_type(offsets.shape, f"!tt.ptr<{_NAMES[pointer.dtype]}>")
        masked = ""
        if mask is not None:
            mask = self._broadcast(mask, offsets.shape)
            if isinstance(other, Block):
                filled = self._broadcast(other, offsets.shape)
            else:
                filled = self.full(offsets.shape, other, pointer.dtype)
            masked = f", {mask.name}, {filled.name}"
        hint = f" evictionPolicy = {eviction}" if eviction else ""
        return Block(self, self._emit(f"tt.load {address}{masked}{hint} : {type}"), offsets.shape, pointer.dtype)

    def store(self, pointer: Pointer, offsets: Block, value: Block, mask: Block | None = None) -> None:
        """Store a block, converted to the dtype of the array, where the mask is True."""
        value = self._broadcast(value.to(pointer.dtype), offsets.shape)
        address = self._addresses(pointer, offsets)
        type = _block_type(offsets.shape, f"!tt.ptr<{_NAMES[pointer.dtype]}>")
        masked = "" if mask is None else f", {self._broadcast(mask, offsets.shape).name}"
        self._line(f"tt.store {address}, {value.name}{masked} : {type}")

    def atomic(
        self,
        op: str,
        pointer: Pointer,
        offsets: Block,
        value: Block,
        mask: Block | None = None,
        order: str = "acq_rel",
    ) -> Block:
        """Update the elements at offsets atomically, where the mask is True, and return what they were.

        `order` is that of the update and other accesses: "relaxed" if none depends on it.
        """
        value = self._broadcast(value, offsets.shape)
        address, element = self._addresses(pointer, offsets), f"!tt.ptr<{_NAMES[pointer.dtype]}>"
        names, types = [address, value.name], [_block_type(offsets.shape, element), value.type]
        if mask is not None:
            mask = self._broadcast(mask, offsets.shape)
            names, types = [*names, mask.name], [*types, mask.type]
        text = f"tt.atomic_rmw {op}, {order}, gpu, {', '.join(names)} : ({', '.join(types)}) -> {value.type}"
        return Block(self, self._emit(text), offsets.shape, value.dtype)

    def compare_and_swap(self, pointer: Pointer, expected: Block, value: Block) -> Block:
        """Replace one element atomically if it is `expected`, and return what it was."""
        types = f"(!tt.ptr<{_NAMES[pointer.dtype]}>, {expected.type}, {value.type}) -> {value.type}"
        text = f"tt.atomic_cas acq_rel, gpu, {pointer.name}, {expected.name}, {value.name} : {types}"
        return Block(self, self._emit(text), (), value.dtype)

    def loop(
        self,
        limit: Block | int,
        step: int,
        start: Sequence[Block],
        body: Callable[..., Sequence[Block]],
        first: Block | int = 0,
    ) -> Sequence[Block]:
        """Run `body(index, *carries)`, which returns the next carries, for `index` in `range(first, limit, step)`."""
        bounds = [self._as_block(number, I32).name for number in (first, limit, step)]
        index, carries = Block(self, self._new_name(), (), I32), [self._renamed(block) for block in start]
        header = f"scf.for {index.name} = {bounds[0]} to {bounds[1]} step {bounds[2]}"
        arguments = ", ".join(f"{carry.name} = {block.name}" for carry, block in zip(carries, start, strict=True))
        types = ", ".join(block.type for block in start)
        results, name = self._region_results(start)
        self._line(f"{name}{header} iter_args({arguments}) -> ({types}) : i32 {{" if start else f"{header} : i32 {{")
        self._region(lambda: body(index, *carries))
        self._line("}")
        return results

    def repeat(
        self, start: Sequence[Block], condition: Callable[..., Block], body: Callable[..., Sequence[Block]]
    ) -> Sequence[Block]:
        """Run `body(*carries)`, which returns the next carries, as long as `condition(*carries)` is True."""
        results, name = self._region_results(start)
        before, after = ([self._renamed(block) for block in start] for _ in range(2))
        initial = ", ".join(f"{carry.name} = {block.name}" for carry, block in zip(before, start, strict=True))
        types = ", ".join(block.type for block in start)
        self._line(f"{name}scf.while ({initial}) : ({types}) -> ({types}) {{")
        self._depth += 1
        holds = condition(*before)
        self._line(f"scf.condition({holds.name}) {', '.join(block.name for block in before)} : {types}")
        self._depth -= 1
        self._line("} do {")
        self._line(f"^bb0({', '.join(f'{block.name}: {block.type}' for block in after)}):")
        self._region(lambda: body(*after))
        self._line("}")
        return results

    def choose(
        self,
        condition: Block,
        like: Sequence[tuple[tuple[int, ...], DType]],
        body: Callable[[], Sequence[Block]],
        otherwise: Callable[[], Sequence[Block]],
    ) -> Sequence[Block]:
        """Return the blocks of `body()` if an element is True, else of `otherwise()`.

        `like` has their shapes and dtypes.
        """
        blocks = [Block(self, "", shape, dtype) for shape, dtype in like]
        results, name = self._region_results(blocks)
        types = f" -> ({', '.join(block.type for block in blocks)})" if blocks else ""
        self._line(f"{name}scf.if {condition.name}{types} {{")
        self._region(body)
        self._line("} else {")
        self._region(otherwise)
        self._line("}")
        return results

    def branch(self, condition: Block, start: Sequence[Block], body: Callable[..., Sequence[Block]]) -> Sequence[Block]:
        """Return `body(*start)`, blocks of the types of `start`, if an element is True; else `start`."""
        results, name = self._region_results(start)
        types = f" -> ({', '.join(block.type for block in start)})" if start else ""
        self._line(f"{name}scf.if {condition.name}{types} {{")
        self._region(lambda: body(*start))
        if start:
            self._line("} else {")
            self._region(lambda: start)
        self._line("}")
        return results

    def where(self, condition: Block, x: Block | float, y: Block | float) -> Block:
        """Select elements of `x` where the condition is True, else of `y`."""
        like = x if isinstance(x, Block) else y
        assert isinstance(like, Block)
        shape = np.broadcast_shapes(condition.shape, like.shape)
        choices = [self._broadcast(self._as_block(z, like.dtype), shape) for z in (x, y)]
        mask = self._broadcast(condition, shape)
        names = f"{mask.name}, {choices[0].name}, {choices[1].name}"
        types = choices[0].type if not shape else f"{mask.type}, {choices[0].type}"
        return Block(self, self._emit(f"arith.select {names} : {types}"), shape, like.dtype)

    def maximum(self, x: Block, y: Block | float) -> Block:
        """Return the larger of two blocks; of floats, the one that is not NaN."""
        return self.binary("arith.maxnumf" if is_float(x.dtype) else "arith.maxsi", x, y, x.dtype)

    def minimum(self, x: Block, y: Block | float) -> Block:
        """Return the smaller of two blocks; of floats, the one that is not NaN."""
        return self.binary("arith.minnumf" if is_float(x.dtype) else "arith.minsi", x, y, x.dtype)

    def abs(self, x: Block) -> Block:
        return self.unary("math.absf", x)

    def exp(self, x: Block) -> Block:
        return self.unary("math.exp", x)

    def log(self, x: Block) -> Block:
        return self.unary("math.log", x)

    def fast_exp2(self, x: Block) -> Block:
        """Return 2**x, with an error of two units in the last place, and zero for results below 2**-126."""
        return self.assembly(EXP2, (x,), F32)

    def reciprocal(self, x: Block) -> Block:
        """Return 1 / x, with an error of one unit in the last place, and zero for results below 2**-126."""
        return self.assembly(RECIPROCAL, (x,), F32)

    def pack_float8(self, blocks: Sequence[Block], dtype: DType) -> Block:
        """Return words of 32 bits with elements of four blocks of float32 as float8, those of the first block lowest.

        Numbers beyond the range of the dtype become its largest or least number; NaN stays NaN.
        """
        return self.assembly(PACKING[dtype], blocks, I32)

    def word_byte(self, words: Block, index: int) -> Block:
        """Return a byte of each word of 32 bits, as an integer; that of index 0 is lowest."""
        return self.binary("arith.shrui", words, 8 * index, I32).to(I8)

    def sqrt(self, x: Block) -> Block:
        return self.unary("math.sqrt", x)

    def rsqrt(self, x: Block) -> Block:
        return self.unary("math.rsqrt", x)

    def dot(self, x: Block, y: Block, total: Block, exact: bool = True, split_accumulator: bool = False) -> Block:
        """Return `total + x @ y`. Every dim is at least 16, and at least 32 of float8 numbers are summed.

        Float32 is rounded to tf32 unless `exact`. Sums of float8 numbers are added in float32 after every
        `SPLIT_PRODUCTS` if `split_accumulator`.
        """
        precision = ", inputPrecision = tf32" if not exact and x.dtype == F32 else ""
        if is_float8(x.dtype):
            # The units of Hopper for float8 keep fewer bits of a sum than float32 has. Without permission to sum 32
            # products in them, Triton uses older units, at half the rate.
            precision += f" {{maxNumImpreciseAcc = {SPLIT_PRODUCTS if split_accumulator else 2**30} : i32}}"
        text = f"tt.dot {x.name}, {y.name}, {total.name}{precision} : {x.type} * {y.type} -> {total.type}"
        return Block(self, self._emit(text), total.shape, total.dtype)

    def function(self, symbol: str, *operands: Block) -> Block:
        """Apply a function of CUDA's libdevice, such as `__nv_tanhf`, to blocks of one shape and dtype."""
        first, names, types = operands[0], [x.name for x in operands], ", ".join(x.type for x in operands)
        attributes = f'{{libname = "", libpath = "", pure = true, symbol = "{symbol}"}}'
        text = f"tt.extern_elementwise {', '.join(names)} {attributes} : ({types}) -> {first.type}"
        return Block(self, self._emit(text), first.shape, first.dtype)

    def assembly(self, instructions: str, operands: Sequence[Block], dtype: DType) -> Block:
        """Apply PTX instructions, with registers `$0` for the result and `$1`, … for operands, to each element."""
        kinds = ["=" + _register(dtype), *(_register(x.dtype) for x in operands)]
        out = Block(self, "", operands[0].shape, dtype)
        attributes = f'{{constraints = "{",".join(kinds)}", packed_element = 1 : i32, pure = true}}'
        names, types = ", ".join(x.name for x in operands), ", ".join(x.type for x in operands)
        text = f'tt.elementwise_inline_asm "{instructions}" {attributes} {names} : {types} -> {out.type}'
        return replace(out, name=self._emit(text))

    def bitcast(self, x: Block, dtype: DType) -> Block:
        """Return the bits of the elements as a dtype of the same size."""
        out = Block(self, x.name, x.shape, dtype)
        return (
            out
            if out.type == x.type
            else replace(out, name=self._emit(f"tt.bitcast {x.name} : {x.type} -> {out.type}"))
        )

    def unary(self, op: str, x: Block) -> Block:
        """Apply an op of MLIR, such as `math.exp`, to a block."""
        return Block(self, self._emit(f"{op} {x.name} : {x.type}"), x.shape, x.dtype)

    def arithmetic(self, op: str, x: Block, y: Block | float) -> Block:
        """Apply an op of MLIR that has a form for floats and one for integers, such as "add", to two blocks."""
        suffix = "f" if is_float(x.dtype) else "i"
        if suffix == "i" and x.dtype.kind == "u":
            op = {"divs": "divu", "rems": "remu", "maxs": "maxu", "mins": "minu"}.get(op, op)
        return self.binary(f"arith.{op}{suffix}", x, y, x.dtype)

    def compare(self, direction: str, x: Block, y: Block | float) -> Block:
        """Compare the elements of two blocks: "eq", "ne", "lt", "le", "gt" or "ge"."""
        if is_float(x.dtype):
            ordered = "une" if direction == "ne" else f"o{direction}"
            return self.binary(f"arith.cmpf {ordered},", x, y, I1)
        sign = "" if direction in ("eq", "ne") else "u" if x.dtype.kind in "bu" else "s"
        return self.binary(f"arith.cmpi {sign}{direction},", x, y, I1)

    def binary(self, op: str, x: Block, y: Block | float, dtype: DType) -> Block:
        """Apply an op of MLIR, such as `arith.addf`, to two blocks, with a result of `dtype`."""
        other = self._as_block(y, x.dtype)
        assert other.dtype == x.dtype, f"{op} of {x.dtype} and {other.dtype}"
        shape = np.broadcast_shapes(x.shape, other.shape)
        left, right = self._broadcast(x, shape), self._broadcast(other, shape)
        return Block(self, self._emit(f"{op} {left.name}, {right.name} : {left.type}"), shape, dtype)

    def _as_block(self, x: Block | float, dtype: DType) -> Block:
        return x if isinstance(x, Block) else self.full((), x, dtype)

    def _broadcast(self, x: Block, shape: tuple[int, ...]) -> Block:
        """Broadcast an element, or a block of the rank of `shape`."""
        if x.shape == shape:
            return x
        assert not x.shape or len(x.shape) == len(shape), f"{x.shape} cannot be broadcast to {shape}"
        out = Block(self, "", shape, x.dtype)
        op = "tt.broadcast" if x.shape else "tt.splat"
        return Block(self, self._emit(f"{op} {x.name} : {x.type} -> {out.type}"), shape, x.dtype)

    def _expand(self, x: Block, axis: int) -> Block:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        out = Block(self, "", shape, x.dtype)
        text = f"tt.expand_dims {x.name} {{axis = {axis} : i32}} : {x.type} -> {out.type}"
        return Block(self, self._emit(text), shape, x.dtype)

    def _convert(self, x: Block, dtype: DType) -> Block:
        if x.dtype == dtype:
            return x
        out = Block(self, "", x.shape, dtype)
        if is_float8(x.dtype) or is_float8(dtype):
            rounding = ", rounding = rtne" if dtype.itemsize < x.dtype.itemsize else ""
            return Block(self, self._emit(f"tt.fp_to_fp {x.name}{rounding} : {x.type} -> {out.type}"), x.shape, dtype)
        if dtype == I1:
            return x.differs(0)
        if dtype.itemsize == x.dtype.itemsize and _NAMES[dtype] == _NAMES[x.dtype]:
            return replace(x, dtype=dtype)  # the other sign
        to_float, from_float = is_float(dtype), is_float(x.dtype)
        narrower = dtype.itemsize < x.dtype.itemsize
        if to_float and from_float:
            if dtype.itemsize == x.dtype.itemsize:  # float16 and bfloat16
                return self._convert(self._convert(x, F32), dtype)
            op = "truncf" if narrower else "extf"
        elif from_float:
            op = "fptoui" if dtype.kind == "u" else "fptosi"
        elif to_float:
            op = "uitofp" if x.dtype.kind in "bu" else "sitofp"
        else:
            op = "trunci" if narrower else "extui" if x.dtype.kind in "bu" else "extsi"
        return Block(self, self._emit(f"arith.{op} {x.name} : {x.type} to {out.type}"), x.shape, dtype)

    def _reshape(self, x: Block, shape: tuple[int, ...]) -> Block:
        out = Block(self, "", shape, x.dtype)
        return Block(self, self._emit(f"tt.reshape {x.name} : {x.type} -> {out.type}"), shape, x.dtype)

    def _transpose(self, x: Block, order: tuple[int, ...]) -> Block:
        out = Block(self, "", tuple(x.shape[dim] for dim in order), x.dtype)
        text = f"tt.trans {x.name} {{order = array<i32: {', '.join(map(str, order))}>}} : {x.type} -> {out.type}"
        return Block(self, self._emit(text), out.shape, x.dtype)

    def reduce(self, op: str, x: Block, axis: int) -> Block:
        """Reduce along a dim with an op of MLIR's dialect `arith`, such as "addf"."""
        shape = tuple(size for dim, size in enumerate(x.shape) if dim != axis)
        out, element = Block(self, "", shape, x.dtype), _NAMES[x.dtype]
        left, right, both = (self._new_name() for _ in range(3))
        name = self._new_name()
        self._line(f'{name} = "tt.reduce"({x.name}) <{{axis = {axis} : i32}}> ({{')
        self._line(f"^bb0({left}: {element}, {right}: {element}):")
        self._line(f"  {both} = arith.{op} {left}, {right} : {element}")
        self._line(f"  tt.reduce.return {both} : {element}")
        self._line(f"}}) : ({x.type}) -> {out.type}")
        return Block(self, name, shape, x.dtype)

    def _addresses(self, pointer: Pointer, offsets: Block) -> str:
        element = f"!tt.ptr<{_NAMES[pointer.dtype]}>"
        base = pointer.name
        if offsets.shape:
            base = self._emit(f"tt.splat {pointer.name} : {element} -> {_block_type(offsets.shape, element)}")
        return self._add_offset(base, pointer.dtype, offsets)

    def _add_offset(self, base: str, dtype: DType, offset: Block) -> str:
        type = _block_type(offset.shape, f"!tt.ptr<{_NAMES[dtype]}>")
        return self._emit(f"tt.addptr {base}, {offset.name} : {type}, {offset.type}")

    def _region(self, body: Callable[[], Sequence[Block]]) -> None:
        """Emit the body of a loop or branch, and what it yields."""
        self._depth += 1
        blocks = body()
        if blocks:
            types = ", ".join(block.type for block in blocks)
            self._line(f"scf.yield {', '.join(block.name for block in blocks)} : {types}")
        self._depth -= 1

    def _region_results(self, start: Sequence[Block]) -> tuple[list[Block], str]:
        """Return the results of a loop or branch, and the left side of its definition."""
        name = self._new_name()
        results = [Block(self, f"{name}#{i}", block.shape, block.dtype) for i, block in enumerate(start)]
        return results, f"{name}:{len(start)} = " if start else ""

    def _renamed(self, block: Block) -> Block:
        return Block(self, self._new_name(), block.shape, block.dtype)

    def _new_name(self) -> str:
        self._count += 1
        return f"%{self._count}"

    def _emit(self, text: str) -> str:
        name = self._new_name()
        self._line(f"{name} = {text}")
        return name

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)


def _block_type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>" if shape else element


def _register(dtype: DType) -> str:
    """Return the kind of register that holds an element of 32 bits."""
    assert dtype in (F32, I32)
    return "f" if dtype == F32 else "r"


def _literal(number: float, dtype: DType) -> str:
    """Return a constant as MLIR writes it. Floats are written as their bits, so that infinities need no other form."""
    if dtype.kind in "ib":
        return str(int(number)) if dtype != I1 else str(bool(number)).lower()
    bits: Any = np.asarray(number, dtype).view(f"u{dtype.itemsize}")
    return f"0x{int(bits):0{2 * dtype.itemsize}X}"
