"""Attention in one kernel: the scores of all queries with all keys are never in memory. On GPUs it is cuDNN's.

    fused_attention        q [B,T,N,H], k and v [B,S,K,H], perhaps a bias [B,N,T,S] (1 for any) → [B,T,N,H], and of each
                           row of scores the logarithm of its sum of powers, [B,N,T]
    fused_attention_grad   what flows back to q, k and v, from these and the result's cotangent

N is a multiple of K: queries' heads share keys in groups. Batch and shared heads pass through.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.shardings.factors import Dims, FactorRule

_WIDE = np.dtype(np.float32)
_HEADS_FIRST = (0, 2, 1, 3)
_NO_WORKSPACE = ArrayType((0,), np.uint8)


@record
class _Attention(Op):
    """`scale` multiplies scores. `causal`: no key later than the query; then `window` is how many keys a query sees, 0
    for all before it."""

    single = False
    is_contraction = True
    takes: ClassVar[tuple[str, ...]]  # what each operand is: queries (or alike), keys, sums, a bias
    gives: ClassVar[tuple[str, ...]]
    scale: float
    causal: bool = False
    window: int = 0

    def factors(self, *types: ArrayType) -> FactorRule:
        batch, rows, heads, width = types[0].shape
        _, columns, shared, _ = types[1].shape
        b, h, t, s, w, g = range(6)
        sizes = [batch, shared, rows, columns, width]
        whole = {t, s, w}
        all_heads: tuple[int, ...] = (h,)
        if heads != shared:
            sizes.append(heads // shared)
            all_heads = (h, g)
            if "keys" in self.gives:  # which are sums over the heads that share them
                whole.add(g)
        tables: dict[str, Dims] = {
            "queries": ((b,), (t,), all_heads, (w,)),
            "keys": ((b,), (s,), (h,), (w,)),
            "sums": ((b,), all_heads, (t,)),
        }
        if self._bias < len(types):
            dims = zip(types[self._bias].shape, ((b,), all_heads, (t,), (s,)), strict=True)
            tables["bias"] = tuple(() if size == 1 else factors for size, factors in dims)
        return FactorRule(
            tuple(tables[role] for role in self.takes[: len(types)]),
            tuple(tables[role] for role in self.gives),
            tuple(sizes),
            need_replication=frozenset(whole),
        )

    @property
    def _bias(self) -> int:
        """Which operand is the bias, if it is there."""
        return len(self.takes) - 1

    def _scores(self, hlo: Hlo, q: Any, k: Any, bias: Any) -> Any:
        """The scores f32[B,N,T,S]; one that does not count is a large negative number."""
        scores = _product_of(hlo, 3, 3, (0, 2), q, _repeated(hlo, k, q.type.shape[2]))
        scores = hlo.op("stablehlo.multiply", (scores, hlo.constant(self.scale, scores.type)), scores.type)
        if bias is not None:
            wide = hlo.op("stablehlo.convert", (bias,), bias.type.with_dtype(_WIDE))
            dims = tuple(dim for dim, size in enumerate(wide.type.shape) if size == scores.type.shape[dim])
            wide = Reshape(tuple(wide.type.shape[dim] for dim in dims)).lower(hlo, wide)
            wide = Broadcast(scores.type.shape, dims).lower(hlo, wide)
            scores = hlo.op("stablehlo.add", (scores, wide), scores.type)
        if not self.causal:
            return scores
        index = ArrayType(scores.type.shape, np.int32)
        rows, columns = (hlo.op("stablehlo.iota", (), index, f"iota_dimension = {dim} : i64") for dim in (2, 3))
        seen = [lower_compare(hlo, "GE", rows, columns)]
        if self.window:
            reach = hlo.op("stablehlo.add", (columns, hlo.constant(self.window, index)), index)
            seen.append(lower_compare(hlo, "LT", rows, reach))
        for part in seen:
            scores = hlo.op("stablehlo.select", (part, scores, hlo.constant(_never(), scores.type)), scores.type)
        return scores

    def _numbers(self, q: NumpyArray, k: NumpyArray, bias: NumpyArray | None) -> NumpyArray:
        """The scores, in numpy."""
        heads = q.shape[2] // k.shape[2]
        scores = np.einsum("btnh,bsnh->bnts", q.astype(np.float32), np.repeat(k, heads, 2).astype(np.float32))
        scores = scores * np.float32(self.scale)
        if bias is not None:
            scores = scores + bias.astype(np.float32)
        if self.causal:
            rows, columns = np.indices(scores.shape[2:])
            seen = (columns <= rows) & ((rows < columns + self.window) | (not self.window))
            scores = np.where(seen, scores, _never())
        return np.asarray(scores)

    def _custom_call(
        self, hlo: Hlo, name: str, operands: Sequence[Any], results: Sequence[ArrayType], products: dict[str, Any]
    ) -> list[Any]:
        """cuDNN's kernel, by its description as XLA reads it."""
        q, k = operands[0].type, operands[1].type
        batch, rows, heads, _ = q.shape
        scores = (batch, heads, rows, k.shape[1])
        config = {
            "operation_queue_id": "0",
            "cudnn_fmha_backend_config": {
                "algorithm": {
                    "algo_id": "0",
                    "math_type": "TENSOR_OP_MATH",
                    "tuning_knobs": {"17": "1", "24": "0"},
                    "is_cudnn_frontend": True,
                    "workspace_size": "0",
                },
                "fmha_scale": self.scale,
                "dropout_rate": 0.0,
                "seed": 42,
                "intermediate_tensor_shape": {
                    "element_type": {"bfloat16": "BF16", "float16": "F16"}[q.dtype.name],
                    "dimensions": [str(size) for size in scores],
                    "tuple_shapes": [],
                    "layout": {
                        "dim_level_types": [],
                        "dim_unique": [],
                        "dim_ordered": [],
                        "minor_to_major": ["3", "2", "1", "0"],
                        "tiles": [],
                        "element_size_in_bits": "0",
                        "memory_space": "0",
                        "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
                        "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
                        "dynamic_shape_metadata_prefix_bytes": "0",
                    },
                    "is_dynamic_dimension": [False] * 4,
                },
                "is_flash_attention": True,
                "mask_type": "CAUSAL" if self.causal else "NO_MASK",
                "sliding_window_length": self.window,
                "max_seg_per_batch": 1,
                "is_paged_attention": False,
                **products,
            },
        }
        text = json.dumps(config).replace('"', "\\22")
        # What cuDNN gives lies as [B,T,N,H] in memory, and is called [B,N,T,H].
        heads_first = "dense<[3, 1, 2, 0]> : tensor<4xindex>"
        order = [
            heads_first if type.ndim == 4 else f"dense<{list(reversed(range(type.ndim)))}> : tensor<{type.ndim}xindex>"
            for type in (*results, _NO_WORKSPACE)
        ]
        given = [f"dense<{list(reversed(range(x.type.ndim)))}> : tensor<{x.type.ndim}xindex>" for x in operands]
        attributes = (
            f'call_target_name = "__cudnn${name}", api_version = 2 : i32, backend_config = "{text}", '
            f"operand_layouts = [{', '.join(given)}], result_layouts = [{', '.join(order)}]"
        )
        return hlo.many("stablehlo.custom_call", operands, (*results, _NO_WORKSPACE), attributes)[:-1]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """The new axis and the batch as one."""
        batch = operands[0].type.shape[1 if dims[0] == 0 else 0]
        merged = []
        for place, (x, dim) in enumerate(zip(operands, dims, strict=True)):
            is_bias = place == self._bias
            if is_bias and dim is None and x.type.shape[0] == 1:
                merged.append(x)  # it is for all elements of the batch alike
                continue
            full = batch_dim_at(x, dim, 0, axis.size)
            if is_bias and full.type.shape[1] == 1:  # one for each element of the new axis
                shape = (axis.size, batch, *full.type.shape[2:])
                full = Broadcast(shape, (0, *range(2, len(shape))))(Reshape((axis.size, *shape[2:]))(full))
            merged.append(Reshape((math.prod(full.type.shape[:2]), *full.type.shape[2:]))(full))
        found = self(*merged)
        split = [Reshape((axis.size, x.type.shape[0] // axis.size, *x.type.shape[1:]))(x) for x in found]
        return tuple(split), (0,) * len(split)


@final
@record
class FusedAttention(_Attention):
    """q, k, v, perhaps a bias: the weighted means of the values, and the logarithms of the rows' sums of powers."""

    name = "fused_attention"
    takes = ("queries", "keys", "keys", "bias")
    gives = ("queries", "sums")

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        q = _checked(self.name, types[:3], types[3:])
        return q, ArrayType((q.shape[0], q.shape[2], q.shape[1]), _WIDE)

    def lower(self, hlo: Hlo, q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        out, sums = self.out_types(*(x.type for x in (q, k, v) if x is not None))
        if hlo.platform == "gpu":
            operands = [x for x in (q, k, v, bias) if x is not None]
            products = {
                "bmm1_dot_dimension_numbers": _product(3, 3, (0, 2), (0, 2)),
                "bmm2_dot_dimension_numbers": _product(3, 1, (0, 1), (0, 2)),
            }
            name = "fmhaSoftmax" if bias is None else "fmhaScaleBiasSoftmax"
            heads_first = out.with_shape(tuple(out.shape[dim] for dim in _HEADS_FIRST))
            found, logarithms = self._custom_call(hlo, name, operands, (heads_first, sums), products)
            return Transpose(_HEADS_FIRST).lower(hlo, found), logarithms
        scores = self._scores(hlo, q, k, bias)
        logarithms = _log_sums(hlo, scores)
        weights = _powers(hlo, scores, logarithms)
        weights = hlo.op("stablehlo.convert", (weights,), weights.type.with_dtype(q.type.dtype))
        found = _product_of(hlo, 3, 1, (0, 1), weights, _repeated(hlo, v, q.type.shape[2]))
        found = hlo.op("stablehlo.convert", (found,), found.type.with_dtype(q.type.dtype))
        return Transpose(_HEADS_FIRST).lower(hlo, found), logarithms

    @ignore_float_errors
    def reference(self, q: NumpyArray, k: NumpyArray, v: NumpyArray, bias: NumpyArray | None = None) -> Any:
        scores = self._numbers(q, k, bias)
        largest = scores.max(-1, keepdims=True)
        total = np.exp(scores - largest).sum(-1, keepdims=True)
        weights = (np.exp(scores - largest) / total).astype(q.dtype).astype(np.float32)
        values = np.repeat(v, q.shape[2] // k.shape[2], 2).astype(np.float32)
        found = np.einsum("bnts,bsnh->btnh", weights, values).astype(q.dtype)
        return found, (largest + np.log(total))[..., 0].astype(np.float32)


@final
@record
class FusedAttentionGrad(_Attention):
    """q, k, v, the sums' logarithms, the result, its cotangent, perhaps a bias: what flows back to q, k and v."""

    name = "fused_attention_grad"
    takes = ("queries", "keys", "keys", "sums", "queries", "queries", "bias")
    gives = ("queries", "keys", "keys")

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        q = _checked(self.name, types[:3], types[6:])
        sums = ArrayType((q.shape[0], q.shape[2], q.shape[1]), _WIDE)
        if [type.strong() for type in types[3:6]] != [sums, q, q]:
            raise TypeError(f"{self.name}: needs {sums} and twice {q}, not {', '.join(map(str, types[3:6]))}")
        return types[0], types[1], types[2]

    def lower(self, hlo: Hlo, q: Any, k: Any, v: Any, sums: Any, out: Any, ct: Any, bias: Any = None) -> Any:
        heads, shared = q.type.shape[2], k.type.shape[2]
        if hlo.platform == "gpu":
            operands = [x for x in (q, k, v, sums, ct, bias, out) if x is not None]
            products = {
                "bmm1_grad_gemm1_dot_dimension_numbers": _product(2, 1, (0, 1), (0, 2)),
                "bmm1_grad_gemm2_dot_dimension_numbers": _product(3, 1, (0, 1), (0, 2)),
                "bmm2_grad_gemm1_dot_dimension_numbers": _product(2, 1, (0, 1), (0, 2)),
                "bmm2_grad_gemm2_dot_dimension_numbers": _product(3, 3, (0, 2), (0, 2)),
            }
            name = "fmhaSoftmaxBackward" if bias is None else "fmhaScaleBiasSoftmaxBackward"
            types = [x.type.with_shape(tuple(x.type.shape[dim] for dim in _HEADS_FIRST)) for x in (q, k, v)]
            found = self._custom_call(hlo, name, operands, types, products)
            return tuple(Transpose(_HEADS_FIRST).lower(hlo, x) for x in found)
        weights = _powers(hlo, self._scores(hlo, q, k, bias), sums)
        narrow = q.type.dtype

        def converted(x: Any, dtype: Any) -> Any:
            return hlo.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))

        pushed = _product_of(hlo, 3, 3, (0, 2), ct, _repeated(hlo, v, heads))
        wide_out, wide_ct = converted(out, _WIDE), converted(ct, _WIDE)
        mean = hlo.op("stablehlo.multiply", (wide_out, wide_ct), wide_out.type)
        mean = Transpose((0, 2, 1)).lower(hlo, _summed(hlo, mean, 3))
        mean = Broadcast(weights.type.shape, (0, 1, 2)).lower(hlo, mean)
        less = hlo.op("stablehlo.subtract", (pushed, mean), mean.type)
        to_scores = hlo.op("stablehlo.multiply", (weights, less), mean.type)
        scaled = converted(
            hlo.op("stablehlo.multiply", (to_scores, hlo.constant(self.scale, mean.type)), mean.type), narrow
        )
        to_q = _product_of(hlo, 3, 1, (0, 1), scaled, _repeated(hlo, k, heads))
        to_k = _product_of(hlo, 2, 1, (0, 1), scaled, q)
        to_v = _product_of(hlo, 2, 1, (0, 1), converted(weights, narrow), ct)
        grouped = [_of_groups(hlo, x, shared) for x in (to_k, to_v)]
        return tuple(Transpose(_HEADS_FIRST).lower(hlo, converted(x, narrow)) for x in (to_q, *grouped))

    @ignore_float_errors
    def reference(
        self,
        q: NumpyArray,
        k: NumpyArray,
        v: NumpyArray,
        sums: NumpyArray,
        out: NumpyArray,
        ct: NumpyArray,
        bias: NumpyArray | None = None,
    ) -> Any:
        group = q.shape[2] // k.shape[2]
        weights = np.exp(self._numbers(q, k, bias) - sums[..., None])
        wide = [x.astype(np.float32) for x in (q, np.repeat(k, group, 2), np.repeat(v, group, 2), out, ct)]
        pushed = np.einsum("btnh,bsnh->bnts", wide[4], wide[2])
        mean = np.einsum("btnh,btnh->bnt", wide[3], wide[4])
        to_scores = weights * (pushed - mean[..., None]) * np.float32(self.scale)
        narrow_scores, narrow_weights = (x.astype(q.dtype).astype(np.float32) for x in (to_scores, weights))
        to_q = np.einsum("bnts,bsnh->btnh", narrow_scores, wide[1])
        to_k, to_v = (
            np.einsum("bnts,btnh->bsnh", x, y).reshape(*k.shape[:3], group, k.shape[3]).sum(3)
            for x, y in ((narrow_scores, wide[0]), (narrow_weights, wide[4]))
        )
        return to_q.astype(q.dtype), to_k.astype(k.dtype), to_v.astype(v.dtype)


def _never() -> float:
    """The score of a key that is not seen."""
    return -0.7 * float(np.finfo(np.float32).max)


def _checked(name: str, types: Sequence[ArrayType], bias: Sequence[ArrayType]) -> ArrayType:
    """The queries' type, if all fits."""
    q, k, v = (type.strong() for type in types)
    if (
        q.ndim != 4
        or k.ndim != 4
        or k != v
        or q.dtype != k.dtype
        or q.shape[0] != k.shape[0]
        or q.shape[3] != k.shape[3]
    ):
        raise TypeError(f"{name}: needs q [B,T,N,H], k and v [B,S,K,H] of one dtype, not {q}, {k} and {v}")
    if not k.shape[2] or q.shape[2] % k.shape[2]:
        raise TypeError(f"{name}: the heads of {q} must be a multiple of those of {k}")
    scores = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for type in bias:
        if type.ndim != 4 or any(size not in (1, full) for size, full in zip(type.shape, scores, strict=True)):
            raise TypeError(f"{name}: a bias must be repeatable to {scores}, not {type}")
    return q


def _product(left: int, right: int, left_batch: Sequence[int], right_batch: Sequence[int]) -> dict[str, list[str]]:
    """A product's dims as XLA's description has them."""
    return {
        "lhs_contracting_dimensions": [str(left)],
        "rhs_contracting_dimensions": [str(right)],
        "lhs_batch_dimensions": [str(dim) for dim in left_batch],
        "rhs_batch_dimensions": [str(dim) for dim in right_batch],
    }


def _product_of(hlo: Hlo, left: int, right: int, batch: tuple[int, int], x: Any, y: Any) -> Any:
    """The product in f32 of arrays along dims `left` and `right`; of both, batch and heads are batch dims."""
    x, y = (hlo.op("stablehlo.convert", (z,), z.type.with_dtype(_WIDE)) for z in (x, y))
    return Dot(((left,), (right,)), (batch, (0, 2))).lower(hlo, x, y)


def _repeated(hlo: Hlo, x: Any, heads: int) -> Any:
    """Keys or values with one head for each of the queries'."""
    batch, columns, shared, width = x.type.shape
    if shared == heads:
        return x
    spread = Broadcast((batch, columns, shared, heads // shared, width), (0, 1, 2, 4)).lower(hlo, x)
    return Reshape((batch, columns, heads, width)).lower(hlo, spread)


def _of_groups(hlo: Hlo, x: Any, shared: int) -> Any:
    """[B,N,S,H] summed over the heads that share keys."""
    batch, heads, columns, width = x.type.shape
    if shared == heads:
        return x
    return _summed(hlo, Reshape((batch, shared, heads // shared, columns, width)).lower(hlo, x), 2)


def _reduced(hlo: Hlo, x: Any, dim: int, how: str, start: float) -> Any:
    first = hlo.constant(start, ArrayType((), _WIDE))

    def join(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return [hlo.op(f"stablehlo.{how}", (a[0], b[0]), a[0].type)]

    return hlo.reduce((x,), (first,), (dim,), join)[0]


def _summed(hlo: Hlo, x: Any, dim: int) -> Any:
    return _reduced(hlo, x, dim, "add", 0.0)


def _log_sums(hlo: Hlo, scores: Any) -> Any:
    """The logarithm of each row's sum of powers."""
    largest = _reduced(hlo, scores, 3, "maximum", -np.inf)
    total = _summed(hlo, _powers(hlo, scores, largest), 3)
    logarithm = hlo.op("stablehlo.log", (total,), total.type)
    return hlo.op("stablehlo.add", (largest, logarithm), total.type)


def _powers(hlo: Hlo, scores: Any, less: Any) -> Any:
    """exp(scores - less), row by row."""
    rows = Broadcast(scores.type.shape, (0, 1, 2)).lower(hlo, less)
    return hlo.op("stablehlo.exponential", (hlo.op("stablehlo.subtract", (scores, rows), scores.type),), scores.type)
