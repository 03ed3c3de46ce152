"""Times of the kernels in an optimized HLO module, by the cost model of a chip.

A kernel is an instruction that computes: a product, a fusion, a copy. The time of a product follows from its shape,
whether XLA writes it as `dot`, as a fusion with a `dot` in it, or as a call of cuBLAS. cuDNN's attention has a rate of
its own. The time of any other kernel is that of its memory traffic. Of an operand that it only slices, the slices
count, and of a result that it updates in place, the update. An asynchronous kernel, such as `fusion-start` and
`fusion-done`, takes its time at its start.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from shardwise.compiler.plan.chip import Chip
from shardwise.runtime.hlo_text import HloComputations, HloInstruction, bracketed
from shardwise.runtime.hlo_types import arrays_of, bytes_of, dtype_of

FREE = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier"),
        *("add-dependency", "partition-id", "replica-id", "domain", "async-update", "async-done"),
        *("copy-done", "fusion-done", "custom-call-done", "send", "send-done", "recv", "recv-done"),
    )
)
_SLICES = ("dynamic-slice", "slice", "gather")
_VIEWS = ("bitcast", "reshape", "get-tuple-element")
_NVIDIA_CALL = re.compile(r"__cu(blas|dnn)\$")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


@final
@dataclass(frozen=True)
class Product:
    """`batch` products of m × k and k × n matrices of a dtype, by its name in HLO."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str


@final
@dataclass(frozen=True)
class Attention:
    """Fused attention or its gradient: flops of products, keys per query, and the dtype, by its name in HLO."""

    flops: float
    keys: float
    dtype: str
    is_gradient: bool


@final
@dataclass(frozen=True)
class Work:
    """What a kernel does: its bytes of memory traffic, and the product or the attention that it computes."""

    accessed: int = 0
    product: Product | None = None
    attention: Attention | None = None

    def seconds(self, chip: Chip) -> float:
        """Return the time of the kernel on a chip; 0 if there is nothing to do."""
        if self.attention is not None:
            flops, keys, dtype = self.attention.flops, self.attention.keys, dtype_of(self.attention.dtype)
            return chip.attention_time(flops, keys, self.accessed, dtype, self.attention.is_gradient)
        if self.product is not None:
            batch, m, n, k = self.product.batch, self.product.m, self.product.n, self.product.k
            return chip.product_time(batch, m, n, k, self.accessed, dtype_of(self.product.dtype))
        return chip.memory_time(self.accessed) if self.accessed else 0.0


@final
@dataclass(frozen=True)
class HloKernels:
    """The times of the kernels of a module on a chip."""

    computations: HloComputations
    chip: Chip

    def seconds(self, instruction: HloInstruction, scope: str) -> float:
        """Return the time of an instruction of the computation `scope`; 0 if it is no kernel."""
        return self.work(instruction, scope).seconds(self.chip)

    def work(self, instruction: HloInstruction, scope: str) -> Work:
        """Return what an instruction of the computation `scope` computes."""
        if instruction.opcode in FREE:
            return Work()
        accessed = self.bytes_accessed(instruction, scope)
        attention = self.attention(instruction, scope)
        return Work(accessed, None if attention else self.product(instruction, scope), attention)

    def product(self, instruction: HloInstruction, scope: str) -> Product | None:
        """Return the product that an instruction computes; of several in a fusion, the largest; None if none."""
        match instruction.opcode:
            case "dot":
                return self._dot(instruction, scope)
            case "convolution":
                return self._convolution(instruction, scope)
            case "custom-call" if "__cublas" in instruction.attributes:
                return self._cublas(instruction, scope)
            case "custom-call" if "__cudnn$conv" in instruction.attributes:
                return self._convolution(instruction, scope)
        inner = (self.product(each, name) for name in instruction.called for each in self._body(name))
        found = [product for product in inner if product is not None]
        return max(found, key=lambda each: each.batch * each.m * each.n * each.k, default=None)

    def attention(self, instruction: HloInstruction, scope: str) -> Attention | None:
        """Return the attention that an instruction computes with cuDNN; None if it computes something else."""
        if instruction.opcode != "custom-call" or "__cudnn$fmha" not in instruction.attributes:
            return None
        config = _config(instruction)
        scores, window = _find(config, "intermediate_tensor_shape"), int(_find(config, "sliding_window_length") or 0)
        if scores is None:
            return None
        batch, heads, queries, keys = map(int, scores["dimensions"])
        operand = next(arrays_of(self._type(instruction.operands[0], scope)))
        is_gradient = "Backward" in instruction.attributes
        products = 5 if is_gradient else 2
        flops = products * 2.0 * batch * heads * queries * keys * operand.shape[-1]
        if "CAUSAL" not in str(_find(config, "mask_type")):
            return Attention(flops, keys, operand.dtype, is_gradient)
        return Attention(flops / 2, min(window or keys, keys / 2), operand.dtype, is_gradient)

    def bytes_accessed(self, instruction: HloInstruction, scope: str) -> int:
        """Return the bytes that an instruction reads and writes in memory."""
        types = [self._type(name, scope) for name in instruction.operands]
        opcode = instruction.opcode.removesuffix("-start")
        if opcode == "dynamic-update-slice":
            return 2 * bytes_of(types[1])
        if opcode == "copy":
            return 2 * bytes_of(types[0])
        if opcode in _SLICES:
            return 2 * bytes_of(instruction.type)
        if opcode != "fusion" or not instruction.called:
            return sum(map(bytes_of, types)) + bytes_of(instruction.type) - _workspace(instruction)
        (body,) = instruction.called[:1]
        return self._bytes_read(body, types) + self._bytes_written(body)

    def _bytes_read(self, body: str, types: Sequence[str]) -> int:
        """Return the bytes that a fused computation reads of its operands."""
        total = 0
        for parameter in self._body(body):
            if parameter.opcode == "parameter":
                uses = [use for use in self._uses(parameter.name, body) if use.opcode != "tuple"]
                if uses and all(self._touches_a_part(use, parameter.name, body) for use in uses):
                    total += sum(bytes_of(use.type) for use in uses if use.opcode in _SLICES)
                else:
                    total += bytes_of(types[int(parameter.operands[0])])
        return total

    def _bytes_written(self, body: str) -> int:
        """Return the bytes that a fused computation writes."""
        root = next(each for each in self._body(body) if each.line.lstrip().startswith("ROOT"))
        names = root.operands if root.opcode == "tuple" else (root.name,)
        results = [self._viewed(name, body) for name in names]
        return sum(
            bytes_of(self._type(each.operands[1], body) if each.opcode == "dynamic-update-slice" else each.type)
            for each in results
        )

    def _touches_a_part(self, use: HloInstruction, name: str, body: str) -> bool:
        """Return whether an instruction reads slices of its first operand, or updates it in place."""
        return use.opcode in (*_SLICES, "dynamic-update-slice") and self._viewed(use.operands[0], body).name == name

    def _viewed(self, name: str, body: str) -> HloInstruction:
        """Return the instruction of a value; if the value is a view, that of the value that it is a view of."""
        instruction = self._instruction(name, body)
        while instruction.opcode in _VIEWS:
            instruction = self._instruction(instruction.operands[0], body)
        return instruction

    def _uses(self, name: str, body: str) -> Iterator[HloInstruction]:
        """Yield the instructions of a computation that use a value, or a view of it."""
        for each in self._body(body):
            if name in each.operands:
                if each.opcode in _VIEWS:
                    yield from self._uses(each.name, body)
                else:
                    yield each

    def _dot(self, instruction: HloInstruction, scope: str) -> Product:
        batch, contracted = (
            [int(dim) for dim in bracketed(value)[1:-1].split(",") if dim] if (value := instruction.value(key)) else []
            for key in ("lhs_batch_dims", "lhs_contracting_dims")
        )
        return self._product(instruction, scope, batch, contracted)

    def _cublas(self, instruction: HloInstruction, scope: str) -> Product | None:
        """Return the product of a call of cuBLAS, whose dimension numbers are in its configuration."""
        config = _config(instruction)
        numbers = _find(config, "dot_dimension_numbers")
        if numbers is None:
            return None
        batch, contracted = (
            [int(dim) for dim in numbers.get(key, ())] for key in ("lhs_batch_dimensions", "lhs_contracting_dimensions")
        )
        return self._product(instruction, scope, batch, contracted)

    def _product(
        self, instruction: HloInstruction, scope: str, batch: Sequence[int], contracted: Sequence[int]
    ) -> Product:
        left, right = (next(arrays_of(self._type(name, scope))) for name in instruction.operands[:2])
        batches = math.prod(left.shape[dim] for dim in batch)
        k = math.prod(left.shape[dim] for dim in contracted)
        m = math.prod(left.shape) // max(1, batches * k)
        n = math.prod(right.shape) // max(1, batches * k)
        return Product(batches, m, n, k, left.dtype)

    def _convolution(self, instruction: HloInstruction, scope: str) -> Product | None:
        """Return a convolution as a product: each output element sums over a window of all input features.

        cuDNN's gradients have the dim labels of the convolution. The gradient of the filter sums over all output
        positions, and the gradient of the input over a window of all output features.
        """
        labels = _LABELS.search(instruction.attributes)
        if labels is None:
            return None
        first, second = (next(arrays_of(self._type(name, scope))) for name in instruction.operands[:2])
        result = next(arrays_of(instruction.type))
        kernel, positions, feature, reduced = second, result, labels[3].index("f"), "o"
        if "__cudnn$convBackwardFilter" in instruction.attributes:
            kernel, positions = result, second
        elif "__cudnn$convBackwardInput" in instruction.attributes:
            feature, reduced = labels[1].index("f"), "i"
        features = positions.shape[feature]
        count = math.prod(positions.shape) // max(1, features)
        k = math.prod(kernel.shape) // max(1, kernel.shape[labels[2].index(reduced)])
        if kernel is result:
            return Product(1, k, features, count, first.dtype)
        return Product(1, count, features, k, kernel.dtype)

    def _type(self, name: str, scope: str) -> str:
        return self._instruction(name, scope).type

    def _instruction(self, name: str, scope: str) -> HloInstruction:
        return self._index[scope][name]

    def _body(self, name: str) -> list[HloInstruction]:
        return self.computations.by_name[name]

    @cached_property
    def _index(self) -> dict[str, dict[str, HloInstruction]]:
        return {scope: {each.name: each for each in body} for scope, body in self.computations.by_name.items()}


def _workspace(instruction: HloInstruction) -> int:
    """Return the bytes of the workspace, the last result of a call of cuBLAS or cuDNN."""
    if instruction.opcode != "custom-call" or not _NVIDIA_CALL.search(instruction.attributes):
        return 0
    *_, last = arrays_of(instruction.type)
    return last.nbytes if last.dtype in ("s8", "u8") and len(last.shape) == 1 else 0


def _config(instruction: HloInstruction) -> Any:
    """Return the backend configuration of an instruction; None if there is none that is JSON."""
    text = instruction.value("backend_config")
    try:
        return json.loads(bracketed(text)) if text and text.startswith("{") else None
    except ValueError:
        return None


def _find(config: Any, key: str) -> Any:
    """Return the value of a key anywhere in nested dicts; None if it is absent."""
    if not isinstance(config, dict):
        return None
    if key in config:
        return config[key]
    return next((found for value in config.values() if (found := _find(value, key)) is not None), None)
