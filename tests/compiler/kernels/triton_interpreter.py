"""An interpreter of the Triton IR that the builder emits, with numpy. jaxlib's MLIR parses and verifies the text.

It reads the text and not the builder, so that it can disagree with it. A load or store out of bounds, and two stores to
one element, are assertion errors.
"""

import math
import re
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.triton import dialect

DTYPES = {
    "i1": np.dtype(bool),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
BINARY = {
    "addi": np.add,
    "addf": np.add,
    "subi": np.subtract,
    "subf": np.subtract,
    "muli": np.multiply,
    "mulf": np.multiply,
    "divf": np.divide,
    "divsi": lambda x, y: np.trunc(np.divide(x, y)).astype(np.asarray(x).dtype),
    "remsi": lambda x, y: np.fmod(x, y).astype(np.asarray(x).dtype),
    "divui": lambda x, y: of_bits(np.floor_divide, x, y),
    "remui": lambda x, y: of_bits(np.remainder, x, y),
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": np.left_shift,
    "shrsi": np.right_shift,
    "shrui": lambda x, y: of_bits(np.right_shift, x, y),
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "maxui": lambda x, y: of_bits(np.maximum, x, y),
    "minui": lambda x, y: of_bits(np.minimum, x, y),
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
    "maxsi": np.maximum,
    "minsi": np.minimum,
}


def of_bits(function: Any, *operands: Any) -> Any:
    """Apply a function to integers as unsigned ones."""
    dtype = np.asarray(operands[0]).dtype
    if dtype == np.bool_:
        return function(*operands)
    result = function(*(np.asarray(x).astype(f"u{dtype.itemsize}") for x in operands))
    return result if result.dtype == np.bool_ else result.astype(dtype)


FUNCTIONS = {
    **{name: getattr(np, name) for name in ("tan", "sinh", "cosh", "tanh", "cbrt", "expm1", "log1p", "rint", "fmod")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")},
    "pow": np.power,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x),
    **{name: np.vectorize(getattr(math, name), otypes=[np.float32]) for name in ("erf", "erfc")},
}
ATOMICS = {
    **{"exch": lambda old, new: new, "add": np.add, "fadd": np.add, "max": np.maximum, "min": np.minimum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"umax": lambda old, new: of_bits(np.maximum, old, new), "umin": lambda old, new: of_bits(np.minimum, old, new)},
}


def float8(name: str, x: Any) -> Any:
    """Round to float8 as `cvt.satfinite` does, and return the bits."""
    dtype = DTYPES[{"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}[name]]
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -limit, limit).astype(dtype).view(np.uint8).astype(np.uint32)


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x).astype(np.float32)


def run_assembly(text: str, operands: list[Any]) -> Any:
    """Run the instructions of PTX that the builder emits."""
    if text in ("ex2.approx.ftz.f32 $0, $1;", "rcp.approx.ftz.f32 $0, $1;"):
        return flushed(np.exp2(flushed(operands[0])) if text[:3] == "ex2" else 1 / flushed(operands[0]))
    conversion = r"cvt\.rn\.satfinite\.(\w+)x2\.f32 (\w+), \$(\d), \$(\d);"
    halves = {
        name: float8(kind, operands[int(upper) - 1]) << 8 | float8(kind, operands[int(lower) - 1])
        for kind, name, upper, lower in re.findall(conversion, text)
    }
    rest = re.sub(conversion, "", text)
    match = re.fullmatch(r"\{ \.reg \.b16 low, high;\s+mov\.b32 \$0, \{(\w+), (\w+)\}; \}", rest)
    assert match, text
    return (halves[match[2]] << 16 | halves[match[1]]).view(np.int32)


UNARY = {
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log2": np.log2,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.log": np.log,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
}
CMPI = {0: np.equal, 1: np.not_equal, 2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
CMPI |= {6 + index: partial(of_bits, CMPI[2 + index]) for index in range(4)}
CMPF = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal, 13: np.not_equal}
REDUCTIONS = {
    "arith.addf": np.sum,
    "arith.addi": np.sum,
    "arith.maxnumf": np.fmax.reduce,
    "arith.minnumf": np.fmin.reduce,
    "arith.maxsi": np.max,
    "arith.minsi": np.min,
    "arith.maximumf": np.max,
    "arith.minimumf": np.min,
    "arith.mulf": np.prod,
    "arith.muli": np.prod,
    "arith.andi": np.bitwise_and.reduce,
    "arith.ori": np.bitwise_or.reduce,
    "arith.xori": np.bitwise_xor.reduce,
    "arith.maxui": lambda x, axis: of_bits(partial(np.max, axis=axis), x),
    "arith.minui": lambda x, axis: of_bits(partial(np.min, axis=axis), x),
}


@dataclass
class Operation:
    """An operation of the module, with indices of values. `text` is its first line."""

    name: str
    operands: list[int]
    results: list[int]
    types: list[str]
    attributes: dict[str, Any]
    regions: list[list["Block"]]
    text: str


@dataclass
class Block:
    arguments: list[int]
    operations: list[Operation]


@dataclass
class Pointer:
    """Addresses: elements of one array, or elements of `dtype`, whose bits one or more of its elements have."""

    array: int
    offsets: Any
    dtype: Any = None


class Interpreter:
    """Runs the programs of one kernel on flat arrays, which it changes.

    Args:
        text: the module.
        rewrites: whether elements may be stored more than once.

    Attributes:
        races: how often a program stored an element at another place of a block than before. A thread stores the same
            places of blocks, and nothing orders the stores of different threads.
    """

    def __init__(self, text: str, rewrites: bool = False):
        self.rewrites = rewrites
        self.context = ir.Context()
        dialect.register_dialect(self.context)
        self.context.load_all_available_dialects()
        with self.context:
            self.module = ir.Module.parse(text)
            self.module.operation.verify()
            (function,) = self.module.body.operations
            self.indices: dict[Any, int] = {}
            self.constants: dict[int, Any] = {}
            (self.block,) = (self.read_block(block) for block in function.regions[0].blocks)

    # MLIR's objects are read once: at each access, they look for the Python module of their dialect.

    def read_block(self, block: Any) -> Block:
        arguments = [self.index(value) for value in block.arguments]
        operations = [self.read_operation(op) for op in block.operations]
        return Block(arguments, [op for op in operations if op.name != "arith.constant"])

    def read_operation(self, op: Any) -> Operation:
        operands, results = ([self.index(value) for value in values] for values in (op.operands, op.results))
        types = [str(value.type) for value in op.results]
        attributes = {name: op.attributes[name] for name in op.attributes}
        regions = [[self.read_block(block) for block in region.blocks] for region in op.regions]
        name = op.operation.name
        if name == "arith.constant":
            shape, dtype = parse_type(types[0])
            self.constants[results[0]] = np.full(shape, parse_number(str(attributes["value"]), dtype), dtype)[()]
        return Operation(name, operands, results, types, attributes, regions, str(op).partition("\n")[0])

    def index(self, value: Any) -> int:
        return self.indices.setdefault(value, len(self.indices))

    def run(self, grid: tuple[int, ...], arrays: list[Any]) -> None:
        self.arrays = arrays
        self.stores = [np.zeros(array.size, np.int32) for array in arrays]
        self.races = 0
        with np.errstate(all="ignore"):
            for program in np.ndindex(*grid):
                self.program = np.int32(program)
                self.places: list[dict[int, int]] = [{} for _ in arrays]
                self.values = dict(self.constants)
                for index, argument in enumerate(self.block.arguments):
                    self.values[argument] = Pointer(index, np.int64(0))
                self.run_block(self.block)
        assert self.rewrites or all(count.max(initial=0) <= 1 for count in self.stores), "an element is stored twice"

    def run_block(self, block: Block) -> list[Any]:
        for op in block.operations:
            operands = [self.values[value] for value in op.operands]
            if op.name in ("scf.yield", "tt.return", "scf.condition"):
                return operands
            results = self.run_op(op, operands)
            for value, result in zip(op.results, results, strict=True):
                self.values[value] = result
        return []

    def run_op(self, op: Operation, operands: list[Any]) -> list[Any]:
        dialect_name, _, short = op.name.partition(".")
        if op.name in UNARY:
            return [UNARY[op.name](*operands)]
        if dialect_name == "arith" and short in BINARY:
            return [BINARY[short](*operands)]
        return getattr(self, f"run_{op.name.replace('.', '_')}")(op, *operands)

    def run_tt_get_program_id(self, op):
        return [self.program[int(op.attributes["axis"])]]

    def run_tt_make_range(self, op):
        return [np.arange(int(op.attributes["start"]), int(op.attributes["end"]), dtype=np.int32)]

    def run_arith_cmpi(self, op, x, y):
        return [CMPI[int(op.attributes["predicate"])](x, y)]

    def run_arith_cmpf(self, op, x, y):
        return [CMPF[int(op.attributes["predicate"])](x, y)]

    def run_arith_select(self, op, condition, x, y):
        return [np.where(condition, x, y)]

    def convert(self, op, x):
        return [np.asarray(x).astype(parse_type(op.types[0])[1])[()]]

    def convert_unsigned(self, op, x):
        x = np.asarray(x)
        return self.convert(op, x if x.dtype == np.bool_ else x.astype(f"u{x.dtype.itemsize}"))

    run_arith_extf = run_arith_truncf = run_arith_extsi = run_arith_trunci = run_tt_fp_to_fp = convert
    run_arith_sitofp = convert
    run_arith_extui = run_arith_uitofp = convert_unsigned

    def run_arith_fptosi(self, op, x):
        """Saturate, and convert NaN to 0, as the instruction `cvt` of GPUs does for integers of 32 bits."""
        limits = np.iinfo(parse_type(op.types[0])[1])
        return [np.clip(np.nan_to_num(np.asarray(x, np.float64)), limits.min, limits.max).astype(limits.dtype)[()]]

    def run_arith_fptoui(self, op, x):
        dtype = parse_type(op.types[0])[1]
        high = np.iinfo(f"u{dtype.itemsize}").max
        return [np.clip(np.nan_to_num(np.asarray(x, np.float64)), 0, high).astype(f"u{dtype.itemsize}").view(dtype)[()]]

    def run_tt_bitcast(self, op, x):
        if isinstance(x, Pointer):
            dtype = DTYPES[re.fullmatch(r"!tt.ptr<(\w+)>", op.types[0])[1]]
            size = self.arrays[x.array].itemsize
            assert dtype.itemsize == size or (dtype.itemsize % size == 0 and x.dtype is None and not x.offsets.any())
            return [Pointer(x.array, x.offsets, dtype)]
        return [np.asarray(x).view(parse_type(op.types[0])[1])[()]]

    def run_tt_extern_elementwise(self, op, *operands):
        symbol = str(op.attributes["symbol"]).strip('"')
        assert symbol.startswith("__nv_") and symbol.endswith("f"), symbol
        return [FUNCTIONS[symbol[5:-1]](*operands).astype(operands[0].dtype)]

    def run_tt_elementwise_inline_asm(self, op, *operands):
        return [run_assembly(str(op.attributes["asm_string"])[1:-1], list(operands))]

    def run_tt_reshape(self, op, x):
        return [np.reshape(x, parse_type(op.types[0])[0])]

    def run_tt_trans(self, op, x):
        return [np.transpose(x, list(op.attributes["order"]))]

    def run_tt_dot(self, op, x, y, total):
        product = np.asarray(x, total.dtype) @ np.asarray(y, total.dtype)
        return [total + product]

    def run_tt_splat(self, op, x):
        shape = parse_type(op.types[0])[0]
        if isinstance(x, Pointer):
            return [Pointer(x.array, np.broadcast_to(x.offsets, shape), x.dtype)]
        return [np.broadcast_to(x, shape)]

    run_tt_broadcast = run_tt_splat

    def run_tt_expand_dims(self, op, x):
        return [np.expand_dims(x, int(op.attributes["axis"]))]

    def run_tt_addptr(self, op, pointer, offset):
        return [Pointer(pointer.array, pointer.offsets + np.asarray(offset, np.int64), pointer.dtype)]

    def run_tt_load(self, op, pointer, mask=True, other=0):
        array = self.array(pointer)
        mask = np.broadcast_to(mask, np.shape(pointer.offsets))
        self.check(array, pointer.offsets, mask)
        safe = np.where(mask, pointer.offsets, 0)
        return [np.where(mask, array[safe], np.asarray(other, array.dtype)).astype(array.dtype)[()]]

    def run_tt_store(self, op, pointer, value, mask=True):
        array = self.array(pointer)
        mask = np.broadcast_to(mask, np.shape(pointer.offsets))
        self.check(array, pointer.offsets, mask)
        offsets = np.asarray(pointer.offsets)[mask]
        array[offsets] = np.broadcast_to(value, mask.shape)[mask]
        count = array.itemsize // self.arrays[pointer.array].itemsize
        stored, stored_places = (np.add.outer(x * count, np.arange(count)) for x in (offsets, np.flatnonzero(mask)))
        places = self.places[pointer.array]
        for offset, place in zip(stored.reshape(-1).tolist(), stored_places.reshape(-1).tolist(), strict=True):
            self.races += places.setdefault(offset, place) != place
        np.add.at(self.stores[pointer.array], stored, 1)
        return []

    def run_tt_atomic_rmw(self, op, pointer, value, mask=True):
        array = self.array(pointer)
        kind = re.search(r"atomic_rmw (\w+)", op.text)[1]
        mask, values = (np.broadcast_to(x, np.shape(pointer.offsets)) for x in (mask, value))
        self.check(array, pointer.offsets, mask)
        before = np.zeros(mask.shape, array.dtype)
        for place in zip(*np.nonzero(mask), strict=True) if mask.ndim else [()] * bool(mask):
            offset = np.asarray(pointer.offsets)[place]
            before[place] = array[offset]
            array[offset] = ATOMICS[kind](array[offset], values[place])
        return [before[()]]

    def run_tt_atomic_cas(self, op, pointer, expected, value):
        array = self.arrays[pointer.array]
        before = array[pointer.offsets]
        array[pointer.offsets] = value if before == expected else before
        return [before]

    def array(self, pointer):
        array = self.arrays[pointer.array]
        return array if pointer.dtype is None else array.view(pointer.dtype)

    def check(self, array, offsets, mask):
        used = np.asarray(offsets)[mask]
        assert ((used >= 0) & (used < array.size)).all(), "a load or store is out of bounds"

    def run_tt_reduce(self, op, x):
        (block,) = op.regions[0]
        kind = block.operations[0].name
        return [np.asarray(REDUCTIONS[kind](x, axis=int(op.attributes["axis"])), x.dtype)[()]]

    def run_scf_if(self, op, condition):
        chosen = op.regions[0 if condition else 1]
        return self.run_block(chosen[0]) if chosen else []

    def run_scf_for(self, op, start, stop, step, *carries):
        (block,) = op.regions[0]
        for index in range(int(start), int(stop), int(step)):
            for value, carry in zip(block.arguments, (np.int32(index), *carries), strict=True):
                self.values[value] = carry
            carries = self.run_block(block)
        return list(carries)

    def run_scf_while(self, op, *carries):
        (condition,), (body,) = op.regions
        while True:
            self.values.update(zip(condition.arguments, carries, strict=True))
            holds, *carries = self.run_block(condition)
            if not holds:
                return list(carries)
            self.values.update(zip(body.arguments, carries, strict=True))
            carries = self.run_block(body)


@cache
def parse_type(text: str) -> tuple[tuple[int, ...], Any]:
    match = re.fullmatch(r"tensor<((?:\d+x)+)(?:!tt.ptr<)?(\w+)>+|(\w+)", text)
    assert match, text
    if match[3]:
        return (), DTYPES[match[3]]
    return tuple(map(int, match[1].split("x")[:-1])), DTYPES[match[2]]


def parse_number(text: str, dtype: Any) -> Any:
    match = re.match(r"(?:dense<)?([^>: ]+)", text)
    assert match, text
    if dtype.kind == "b":
        return match[1] == "true"
    if match[1].startswith("0x") and dtype.kind not in "iu":
        return np.array(int(match[1], 16), f"u{dtype.itemsize}").view(dtype)[()]
    return float(match[1]) if dtype.kind not in "iu" else int(match[1])
