"""Flash attention: attention that does not materialize the scores. On GPUs it is cuDNN's kernel.

    fused_attention        q [B,T,N,H], k and v [B,S,K,H], optionally a bias that broadcasts to [B,N,T,S] → the output
                           [B,T,N,H], and the logsumexp of each row of scores [B,N,T]
    fused_attention_grad   the cotangents of q, k and v

N is a multiple of K: groups of query heads share a key head (grouped-query attention). The ops can be sharded along the
batch and the heads.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, ignore_float_errors
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
class Attention(Op):
    """The base class.

    Attributes:
        scale: the factor of the scores.
        causal: whether a query attends only to keys up to its own position.
        window: with `causal`, the number of keys that a query attends to; 0 for all of them.
    """

    single = False
    is_contraction = True
    operand_roles: ClassVar[tuple[str, ...]]  # for each operand: queries, keys (values too), logsumexp, or bias
    result_roles: ClassVar[tuple[str, ...]]
    products: ClassVar[int]  # the number of products of queries × keys × head size
    scale: float
    causal: bool = False
    window: int = 0

    def factors(self, *types: ArrayType) -> FactorRule:
        batch, rows, heads, width = types[0].shape
        _, columns, shared, _ = types[1].shape
        b, h, t, s, w, g = range(6)
        sizes = [batch, shared, rows, columns, width]
        need_replication = {t, s, w}
        all_heads: tuple[int, ...] = (h,)
        if heads != shared:
            sizes.append(heads // shared)
            all_heads = (h, g)
            if "keys" in self.result_roles:  # their cotangents are sums over the query heads of a group
                need_replication.add(g)
        tables: dict[str, Dims] = {
            "queries": ((b,), (t,), all_heads, (w,)),
            "keys": ((b,), (s,), (h,), (w,)),
            "logsumexp": ((b,), all_heads, (t,)),
        }
        if self._bias_operand < len(types):
            dims = zip(types[self._bias_operand].shape, ((b,), all_heads, (t,), (s,)), strict=True)
            tables["bias"] = tuple(() if size == 1 else factors for size, factors in dims)
        return FactorRule(
            tuple(tables[role] for role in self.operand_roles[: len(types)]),
            tuple(tables[role] for role in self.result_roles),
            tuple(sizes),
            need_replication=frozenset(need_replication),
        )

    def flops(self, *types: ArrayType) -> float:
        return self.products * super().flops(*types) * (0.5 if self.causal else 1.0)

    def keys_per_query(self, *types: ArrayType) -> float:
        keys = types[1].shape[1]
        if self.window:
            return min(self.window, keys / 2)
        return keys / 2 if self.causal else keys

    @property
    def _bias_operand(self) -> int:
        """The index of the bias operand, which is optional."""
        return len(self.operand_roles) - 1

    def _lower_scores(self, hlo: Hlo, q: HloValue, k: HloValue, bias: HloValue | None) -> Any:
        """Lower the scores f32[B,N,T,S]. Masked scores are a large negative number."""
        scores = _lower_dot(hlo, 3, 3, (0, 2), q, _lower_repeat_heads(hlo, k, q.type.shape[2]))
        scores = hlo.op("stablehlo.multiply", (scores, hlo.constant(self.scale, scores.type)), scores.type)
        if bias is not None:
            wide = _lower_convert(hlo, bias, _WIDE)
            dims = tuple(dim for dim, size in enumerate(wide.type.shape) if size == scores.type.shape[dim])
            wide = Reshape(tuple(wide.type.shape[dim] for dim in dims)).lower(hlo, wide)
            wide = Broadcast(scores.type.shape, dims).lower(hlo, wide)
            scores = hlo.op("stablehlo.add", (scores, wide), scores.type)
        if not self.causal:
            return scores
        index = ArrayType(scores.type.shape, np.int32)
        rows, columns = (hlo.op("stablehlo.iota", (), index, f"iota_dimension = {dim} : i64") for dim in (2, 3))
        masks = [lower_compare(hlo, "GE", rows, columns)]
        if self.window:
            window_end = hlo.op("stablehlo.add", (columns, hlo.constant(self.window, index)), index)
            masks.append(lower_compare(hlo, "LT", rows, window_end))
        for mask in masks:
            scores = hlo.op("stablehlo.select", (mask, scores, hlo.constant(_masked_score(), scores.type)), scores.type)
        return scores

    def _reference_scores(self, q: NumpyArray, k: NumpyArray, bias: NumpyArray | None) -> NumpyArray:
        """Compute the scores in numpy."""
        heads = q.shape[2] // k.shape[2]
        scores = np.einsum("btnh,bsnh->bnts", q.astype(np.float32), np.repeat(k, heads, 2).astype(np.float32))
        scores = scores * np.float32(self.scale)
        if bias is not None:
            scores = scores + bias.astype(np.float32)
        if self.causal:
            rows, columns = np.indices(scores.shape[2:])
            mask = (columns <= rows) & ((rows < columns + self.window) | (not self.window))
            scores = np.where(mask, scores, _masked_score())
        return np.asarray(scores)

    def _lower_custom_call(
        self, hlo: Hlo, name: str, operands: Sequence[Any], results: Sequence[ArrayType], products: dict[str, Any]
    ) -> list[Any]:
        """Call the cuDNN kernel with this name. `products` are the dimension numbers of its matrix products."""
        q, k = operands[0].type, operands[1].type
        config = json.dumps(self._backend_config(q, k, products)).replace('"', "\\22")
        # cuDNN's results have the shape [B,N,T,H], and the memory layout of [B,T,N,H].
        heads_first = "dense<[3, 1, 2, 0]> : tensor<4xindex>"
        result_layouts = [heads_first if type.ndim == 4 else _row_major(type) for type in (*results, _NO_WORKSPACE)]
        operand_layouts = [_row_major(x.type) for x in operands]
        attributes = (
            f'call_target_name = "__cudnn${name}", api_version = 2 : i32, backend_config = "{config}", '
            f"operand_layouts = [{', '.join(operand_layouts)}], result_layouts = [{', '.join(result_layouts)}]"
        )
        return hlo.many("stablehlo.custom_call", operands, (*results, _NO_WORKSPACE), attributes)[:-1]

    def _backend_config(self, q: ArrayType, k: ArrayType, products: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of the kernel in the form that XLA expects."""
        batch, rows, heads, _ = q.shape
        scores = (batch, heads, rows, k.shape[1])
        return {
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

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Merge the batch dim into B."""
        batch = operands[0].type.shape[1 if dims[0] == 0 else 0]
        merged = []
        for place, (x, dim) in enumerate(zip(operands, dims, strict=True)):
            is_bias = place == self._bias_operand
            if is_bias and dim is None and x.type.shape[0] == 1:
                merged.append(x)  # it broadcasts along the batch
                continue
            full = batch_dim_at(x, dim, 0, axis.size)
            if is_bias and full.type.shape[1] == 1:  # batched, but it broadcasts along B
                shape = (axis.size, batch, *full.type.shape[2:])
                full = Broadcast(shape, (0, *range(2, len(shape))))(Reshape((axis.size, *shape[2:]))(full))
            merged.append(Reshape((math.prod(full.type.shape[:2]), *full.type.shape[2:]))(full))
        split = [Reshape((axis.size, x.type.shape[0] // axis.size, *x.type.shape[1:]))(x) for x in self(*merged)]
        return tuple(split), (0,) * len(split)


@final
@record
class FusedAttention(Attention):
    """(q, k, v, optionally bias) → the output, and the logsumexp of each row of scores."""

    name = "fused_attention"
    operand_roles = ("queries", "keys", "keys", "bias")
    result_roles = ("queries", "logsumexp")
    products = 2

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        q = _check_types(self.name, types[:3], types[3:])
        return q, ArrayType((q.shape[0], q.shape[2], q.shape[1]), _WIDE)

    def lower(self, hlo: Hlo, q: HloValue, k: HloValue, v: HloValue, bias: HloValue | None = None) -> Any:
        out, rows = self.out_types(q.type, k.type, v.type)
        if hlo.platform == "cuda":
            operands = [x for x in (q, k, v, bias) if x is not None]
            products = {
                "bmm1_dot_dimension_numbers": _dimension_numbers(3, 3, (0, 2), (0, 2)),
                "bmm2_dot_dimension_numbers": _dimension_numbers(3, 1, (0, 1), (0, 2)),
            }
            name = "fmhaSoftmax" if bias is None else "fmhaScaleBiasSoftmax"
            heads_first = out.with_shape(tuple(out.shape[dim] for dim in _HEADS_FIRST))
            result, logsumexp = self._lower_custom_call(hlo, name, operands, (heads_first, rows), products)
            return Transpose(_HEADS_FIRST).lower(hlo, result), logsumexp
        scores = self._lower_scores(hlo, q, k, bias)
        logsumexp = _lower_logsumexp(hlo, scores)
        weights = _lower_convert(hlo, _lower_exp(hlo, scores, logsumexp), q.type.dtype)
        result = _lower_dot(hlo, 3, 1, (0, 1), weights, _lower_repeat_heads(hlo, v, q.type.shape[2]))
        return Transpose(_HEADS_FIRST).lower(hlo, _lower_convert(hlo, result, q.type.dtype)), logsumexp

    @ignore_float_errors
    def reference(self, q: NumpyArray, k: NumpyArray, v: NumpyArray, bias: NumpyArray | None = None) -> Any:
        scores = self._reference_scores(q, k, bias)
        largest = scores.max(-1, keepdims=True)
        total = np.exp(scores - largest).sum(-1, keepdims=True)
        weights = (np.exp(scores - largest) / total).astype(q.dtype).astype(np.float32)
        values = np.repeat(v, q.shape[2] // k.shape[2], 2).astype(np.float32)
        result = np.einsum("bnts,bsnh->btnh", weights, values).astype(q.dtype)
        return result, (largest + np.log(total))[..., 0].astype(np.float32)


@final
@record
class FusedAttentionGrad(Attention):
    """(q, k, v, logsumexp, output, cotangent of the output, optionally bias) → the cotangents of q, k and v."""

    name = "fused_attention_grad"
    is_gradient = True
    operand_roles = ("queries", "keys", "keys", "logsumexp", "queries", "queries", "bias")
    result_roles = ("queries", "keys", "keys")
    products = 5
    repeated_flops = 1 / 5  # the scores

    def workspace_bytes(self, *types: ArrayType) -> int | None:
        """cuDNN accumulates the cotangent of q in f32, and needs a sum for each query."""
        q, logsumexp = types[0], types[3]
        return q.size * _WIDE.itemsize + logsumexp.nbytes

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        q = _check_types(self.name, types[:3], types[6:])
        logsumexp = ArrayType((q.shape[0], q.shape[2], q.shape[1]), _WIDE)
        if [type.strong() for type in types[3:6]] != [logsumexp, q, q]:
            raise TypeError(
                f"{self.name}: logsumexp, output and cotangent must be {logsumexp}, {q} and {q}, not "
                f"{', '.join(map(str, types[3:6]))}"
            )
        return types[0], types[1], types[2]

    def lower(
        self,
        hlo: Hlo,
        q: HloValue,
        k: HloValue,
        v: HloValue,
        logsumexp: HloValue,
        out: HloValue,
        ct: HloValue,
        bias: HloValue | None = None,
    ) -> Any:
        if hlo.platform == "cuda":
            operands = [x for x in (q, k, v, logsumexp, ct, bias, out) if x is not None]
            products = {
                "bmm1_grad_gemm1_dot_dimension_numbers": _dimension_numbers(2, 1, (0, 1), (0, 2)),
                "bmm1_grad_gemm2_dot_dimension_numbers": _dimension_numbers(3, 1, (0, 1), (0, 2)),
                "bmm2_grad_gemm1_dot_dimension_numbers": _dimension_numbers(2, 1, (0, 1), (0, 2)),
                "bmm2_grad_gemm2_dot_dimension_numbers": _dimension_numbers(3, 3, (0, 2), (0, 2)),
            }
            name = "fmhaSoftmaxBackward" if bias is None else "fmhaScaleBiasSoftmaxBackward"
            types = [x.type.with_shape(tuple(x.type.shape[dim] for dim in _HEADS_FIRST)) for x in (q, k, v)]
            cotangents = self._lower_custom_call(hlo, name, operands, types, products)
            return tuple(Transpose(_HEADS_FIRST).lower(hlo, x) for x in cotangents)
        weights = _lower_exp(hlo, self._lower_scores(hlo, q, k, bias), logsumexp)
        return self._lower_by_products(hlo, q, k, v, weights, out, ct)

    def _lower_by_products(
        self, hlo: Hlo, q: HloValue, k: HloValue, v: HloValue, weights: HloValue, out: HloValue, ct: HloValue
    ) -> Any:
        """Lower the cotangents with ordinary products. `weights` are the attention weights."""
        heads, key_heads = q.type.shape[2], k.type.shape[2]
        narrow = q.type.dtype
        weight_cts = _lower_dot(hlo, 3, 3, (0, 2), ct, _lower_repeat_heads(hlo, v, heads))
        wide_out, wide_ct = _lower_convert(hlo, out, _WIDE), _lower_convert(hlo, ct, _WIDE)
        mean = hlo.op("stablehlo.multiply", (wide_out, wide_ct), wide_out.type)
        mean = Transpose((0, 2, 1)).lower(hlo, _lower_sum(hlo, mean, 3))
        mean = Broadcast(weights.type.shape, (0, 1, 2)).lower(hlo, mean)
        centred = hlo.op("stablehlo.subtract", (weight_cts, mean), mean.type)
        score_cts = hlo.op("stablehlo.multiply", (weights, centred), mean.type)
        scaled = hlo.op("stablehlo.multiply", (score_cts, hlo.constant(self.scale, mean.type)), mean.type)
        scaled = _lower_convert(hlo, scaled, narrow)
        q_ct = _lower_dot(hlo, 3, 1, (0, 1), scaled, _lower_repeat_heads(hlo, k, heads))
        k_ct = _lower_dot(hlo, 2, 1, (0, 1), scaled, q)
        v_ct = _lower_dot(hlo, 2, 1, (0, 1), _lower_convert(hlo, weights, narrow), ct)
        cotangents = (q_ct, *(_lower_sum_groups(hlo, x, key_heads) for x in (k_ct, v_ct)))
        return tuple(Transpose(_HEADS_FIRST).lower(hlo, _lower_convert(hlo, x, narrow)) for x in cotangents)

    @ignore_float_errors
    def reference(
        self,
        q: NumpyArray,
        k: NumpyArray,
        v: NumpyArray,
        logsumexp: NumpyArray,
        out: NumpyArray,
        ct: NumpyArray,
        bias: NumpyArray | None = None,
    ) -> Any:
        group = q.shape[2] // k.shape[2]
        weights = np.exp(self._reference_scores(q, k, bias) - logsumexp[..., None])
        repeated = (q, np.repeat(k, group, 2), np.repeat(v, group, 2), out, ct)
        wide_q, wide_k, wide_v, wide_out, wide_ct = (x.astype(np.float32) for x in repeated)
        weight_cts = np.einsum("btnh,bsnh->bnts", wide_ct, wide_v)
        mean = np.einsum("btnh,btnh->bnt", wide_out, wide_ct)
        score_cts = weights * (weight_cts - mean[..., None]) * np.float32(self.scale)
        narrow_scores, narrow_weights = (x.astype(q.dtype).astype(np.float32) for x in (score_cts, weights))
        q_ct = np.einsum("bnts,bsnh->btnh", narrow_scores, wide_k)
        k_ct, v_ct = (
            np.einsum("bnts,btnh->bsnh", x, y).reshape(*k.shape[:3], group, k.shape[3]).sum(3)
            for x, y in ((narrow_scores, wide_q), (narrow_weights, wide_ct))
        )
        return q_ct.astype(q.dtype), k_ct.astype(k.dtype), v_ct.astype(v.dtype)


def _masked_score() -> float:
    """Return the score of a masked key."""
    return -0.7 * float(np.finfo(np.float32).max)


def _check_types(name: str, types: Sequence[ArrayType], bias: Sequence[ArrayType]) -> ArrayType:
    """Check the types of q, k, v and the bias. Return the type of the queries."""
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
        if type.ndim != 4 or any(size not in (1, expected) for size, expected in zip(type.shape, scores, strict=True)):
            raise TypeError(f"{name}: the bias must broadcast to {scores}, but is {type}")
    return q


def _dimension_numbers(
    left: int, right: int, left_batch: Sequence[int], right_batch: Sequence[int]
) -> dict[str, list[str]]:
    """Return the dimension numbers of a product in the form of XLA's configuration."""
    return {
        "lhs_contracting_dimensions": [str(left)],
        "rhs_contracting_dimensions": [str(right)],
        "lhs_batch_dimensions": [str(dim) for dim in left_batch],
        "rhs_batch_dimensions": [str(dim) for dim in right_batch],
    }


def _row_major(type: ArrayType) -> str:
    """Return the attribute of the row-major memory layout."""
    return f"dense<{list(reversed(range(type.ndim)))}> : tensor<{type.ndim}xindex>"


def _lower_convert(hlo: Hlo, x: HloValue, dtype: DTypeLike) -> Any:
    return hlo.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))


def _lower_dot(hlo: Hlo, left: int, right: int, batch: tuple[int, int], x: HloValue, y: HloValue) -> Any:
    """Multiply in f32, contracting dims `left` and `right`. The batch dims are `batch` of `x` and (0, 2) of `y`."""
    x, y = (_lower_convert(hlo, z, _WIDE) for z in (x, y))
    return Dot(((left,), (right,)), (batch, (0, 2))).lower(hlo, x, y)


def _lower_repeat_heads(hlo: Hlo, x: HloValue, heads: int) -> Any:
    """Repeat the heads of keys or values to the number of query heads."""
    batch, columns, key_heads, width = x.type.shape
    if key_heads == heads:
        return x
    repeated = Broadcast((batch, columns, key_heads, heads // key_heads, width), (0, 1, 2, 4)).lower(hlo, x)
    return Reshape((batch, columns, heads, width)).lower(hlo, repeated)


def _lower_sum_groups(hlo: Hlo, x: HloValue, key_heads: int) -> Any:
    """Sum [B,N,S,H] over the query heads that share a key head."""
    batch, heads, columns, width = x.type.shape
    if key_heads == heads:
        return x
    return _lower_sum(hlo, Reshape((batch, key_heads, heads // key_heads, columns, width)).lower(hlo, x), 2)


def _lower_reduce(hlo: Hlo, x: HloValue, dim: int, reducer: str, neutral: float) -> Any:
    start = hlo.constant(neutral, ArrayType((), _WIDE))

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return [hlo.op(f"stablehlo.{reducer}", (a[0], b[0]), a[0].type)]

    return hlo.reduce((x,), (start,), (dim,), combine)[0]


def _lower_sum(hlo: Hlo, x: HloValue, dim: int) -> Any:
    return _lower_reduce(hlo, x, dim, "add", 0.0)


def _lower_logsumexp(hlo: Hlo, scores: HloValue) -> Any:
    """Lower the logsumexp of each row of scores."""
    largest = _lower_reduce(hlo, scores, 3, "maximum", -np.inf)
    total = _lower_sum(hlo, _lower_exp(hlo, scores, largest), 3)
    logarithm = hlo.op("stablehlo.log", (total,), total.type)
    return hlo.op("stablehlo.add", (largest, logarithm), total.type)


def _lower_exp(hlo: Hlo, scores: HloValue, offsets: HloValue) -> Any:
    """Lower exp(scores - offsets), with one offset per row."""
    rows = Broadcast(scores.type.shape, (0, 1, 2)).lower(hlo, offsets)
    return hlo.op("stablehlo.exponential", (hlo.op("stablehlo.subtract", (scores, rows), scores.type),), scores.type)
