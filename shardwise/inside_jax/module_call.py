"""The JAX primitive whose lowering inserts a StableHLO module of Shardwise, inside `jax.shard_map`."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.lower import StableHlo
from shardwise.inside_jax import _jax

module_p = _jax.Primitive("shardwise_module")
module_p.multiple_results = True


@final
class ModuleCall:
    """A call of a module with the shards of one device. PRNG keys are words in the module, and keys outside of it.

    Args:
        name: the name of the function, which profiles show.
        module: the module.
        out_types: the types of its results.
        out_avals: the types of the results in JAX, for whole arrays.
    """

    def __init__(self, name: str, module: StableHlo, out_types: Sequence[ArrayType], out_avals: Sequence[Any]):
        self.name = name
        self.module = module
        self.out_types = out_types
        self.out_avals = out_avals

    def __call__(self, *shards: Any) -> list[Any]:
        words = [_jax.jax.random.key_data(x) if _is_key(x) else x for x in shards]
        results = module_p.bind(*words, call=self)
        return [
            _jax.jax.random.wrap_key_data(x, impl=aval.dtype._impl.name) if _is_key(aval) else x
            for x, aval in zip(results, self.out_avals, strict=True)
        ]

    def result_avals(self) -> list[Any]:
        return [
            _jax.ShapedArray(type.shape, type.dtype, weak_type=aval.weak_type and not _is_key(aval))
            for type, aval in zip(self.out_types, self.out_avals, strict=True)
        ]


def _is_key(x: Any) -> bool:
    return bool(_jax.jax.dtypes.issubdtype(x.dtype, _jax.jax.dtypes.prng_key))


def _abstract_eval(*_: Any, call: ModuleCall) -> list[Any]:
    return call.result_avals()


module_p.def_abstract_eval(_abstract_eval)


def _lower(ctx: Any, *operands: Any, call: ModuleCall) -> list[Any]:
    """Insert the module's function, and call it."""
    _jax.initialize_libraries(call.module.text)
    context = ctx.module_context
    ir = _jax.mlir.ir
    module = ir.Module.parse(call.module.text, context.context)
    (main,) = module.body.operations
    types = list(main.type.results)
    symbol = _jax.merge_mlir_modules(context.module, call.name, module, dst_symtab=context.symbol_table)
    return list(_jax.func.CallOp(types, ir.FlatSymbolRefAttr.get(symbol), list(operands)).results)


_jax.mlir.register_lowering(module_p, _lower)
