"""The JAX primitive whose lowering inserts a StableHLO module of Shardwise, inside `jax.shard_map`."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import CALLBACK_TARGETS, HostCallback
from shardwise.compiler.lower.lower import StableHlo
from shardwise.inside_jax import _jax
from shardwise.inside_jax.opaque import PLACEHOLDER, equation_numbered

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
        effects: the effects of the function in JAX, so that JAX does not drop the call.
    """

    def __init__(
        self,
        name: str,
        module: StableHlo,
        out_types: Sequence[ArrayType],
        out_avals: Sequence[Any],
        effects: Iterable[Any],
    ):
        self.name = name
        self.module = module
        self.out_types = out_types
        self.out_avals = out_avals
        self.effects = {effect for effect in effects if _jax.lowerable_effects.contains(effect)}

    def __call__(self, *shards: _jax.Array) -> list[Any]:
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


def _abstract_eval(*_: object, call: ModuleCall) -> tuple[list[Any], set[Any]]:
    return call.result_avals(), call.effects


module_p.def_effectful_abstract_eval(_abstract_eval)


def _lower(ctx: _jax.LoweringRuleContext, *operands: _jax.Array, call: ModuleCall) -> list[Any]:
    """Insert the module's function, and call it."""
    _jax.initialize_libraries(call.module.text)
    context = ctx.module_context
    ir = _jax.mlir.ir
    module = ir.Module.parse(call.module.text, context.context)
    (main,) = module.body.operations
    ordered = [effect for effect in call.effects if _jax.ordered_effects.contains(effect)]
    if ordered:
        _thread_token(main)
        # The module has one order for all kinds of ordered effects, such as those of `debug.print` and `io_callback`.
        operands = (*operands, _jax.hlo.after_all([ctx.tokens_in.get(effect) for effect in ordered]))
    types = list(main.type.results)
    symbol = _jax.merge_mlir_modules(context.module, call.name, module, dst_symtab=context.symbol_table)
    for op in _custom_calls(context.symbol_table[symbol]):
        target = op.attributes["call_target_name"].value
        if target == PLACEHOLDER:
            _replace_placeholder(ctx, op)
        elif target in CALLBACK_TARGETS.values():
            _bind_callback(context, op, call.module.callbacks)
    results = list(_jax.func.CallOp(types, ir.FlatSymbolRefAttr.get(symbol), list(operands)).results)
    if ordered:
        token = results.pop()
        # XLA does not compile programs that return one token twice.
        ctx.set_tokens_out(_jax.mlir.TokenSet({effect: _jax.hlo.after_all([token]) for effect in ordered}))
    return results


def _thread_token(main: Any) -> None:
    """Let the module's function take the token that orders its effects, and return the last one, instead of a new one.

    Without it, effects would be ordered within a call, but not between calls.
    """
    ir = _jax.mlir.ir
    token = ir.Type.parse("!stablehlo.token", main.context)
    block = main.entry_block
    argument = block.add_argument(token, main.location)
    last = argument
    for op in list(block.operations):
        if op.operation.name == "stablehlo.create_token":
            op.operation.results[0].replace_all_uses_with(argument)
            op.operation.erase()
        else:
            last = next((result for result in op.operation.results if result.type == token), last)
    end = block.operations[len(block.operations) - 1]
    with ir.InsertionPoint(end), end.location:
        _jax.func.ReturnOp([*end.operands, last])
    end.operation.erase()
    with main.context:
        function_type = ir.FunctionType.get([*main.type.inputs, token], [*main.type.results, token])
        main.attributes["function_type"] = ir.TypeAttr.get(function_type)
        for name in ("arg_attrs", "res_attrs"):
            if name in main.attributes:
                main.attributes[name] = ir.ArrayAttr.get([*main.attributes[name], ir.DictAttr.get({})])


def _custom_calls(function: Any) -> list[Any]:
    """Return the custom calls of a function, also those in regions."""
    calls: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            calls.append(op)
        return _jax.mlir.ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return calls


def _replace_placeholder(ctx: _jax.LoweringRuleContext, op: Any) -> None:
    """Insert JAX's lowering of an equation in place of its placeholder."""
    equation = equation_numbered(int(op.attributes["backend_config"].value))
    avals = [_jax.ShapedArray(aval.shape, aval.dtype) for aval in equation.avals]
    with _jax.mlir.ir.InsertionPoint(op), op.location:
        inner = ctx.replace(primitive=None, avals_in=avals, avals_out=None)
        results = _jax.mlir.lower_fun(equation, multiple_results=True)(inner, *op.operands)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _bind_callback(context: Any, op: Any, callbacks: Sequence[HostCallback]) -> None:
    """Register the host function of a callback with JAX, and refer to it by JAX's index."""
    ir = _jax.mlir.ir
    config = op.attributes["backend_config"]
    context.add_host_callback(partial(_call_host, callbacks[ir.IntegerAttr(config["index"]).value]))
    index = ir.IntegerAttr.get(config["index"].type, len(context.host_callbacks) - 1)
    op.attributes["backend_config"] = ir.DictAttr.get({"index": index})


def _call_host(callback: HostCallback, *operands: Any) -> tuple[Any, ...]:
    """Call the function of a callback. The first operand and result of an ordered callback are tokens."""
    tokens, arrays = (operands[:1], operands[1:]) if callback.ordered else ((), operands)
    return (*tokens, *callback.function(*map(np.asarray, arrays)))


_jax.mlir.register_lowering(module_p, _lower)
