"""trace_call: trace a function for the arguments of one call, for an op that holds its program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import array_leaves, function_name
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.ref import Ref, RefScope, current_values, set_refs
from shardwise.api.static_args import SplitArguments
from shardwise.api.trace_cache import trace_context, trace_once
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.replay import replay


@final
@dataclass(frozen=True)
class TracedCall:
    """A traced function and the operands of one call.

    Attributes:
        program: maps the leaves of the arguments and the captured values to the leaves of the results, followed by the
            values of the Refs that the function writes.
        operands: the inputs of the program.
        out_tree: the pytree structure of the results.
        written: the Refs that the function writes.
    """

    program: Program
    operands: list[Any]
    out_tree: tree.Structure
    written: list[Ref]

    def apply(self, op: Op) -> Any:
        """Return the results of `op`, which holds the program. Without a frame that records it, run the program."""
        outputs = op(*self.operands) if is_traced(self.operands) else replay(self.program, self.operands)
        count = self.out_tree.num_leaves
        set_refs(self.written, outputs[count:])
        return self.out_tree.unflatten(list(outputs[:count]))


def trace_call(function: Callable[..., Any], arguments: SplitArguments, key: object) -> TracedCall:
    """Trace `function` for these arguments, or find it traced in a cache.

    Args:
        function: the function.
        arguments: the arguments of the call.
        key: what the trace depends on beside the function and its arguments.
    """
    bound = arguments.bind(function)
    leaves, structure = array_leaves(bound, arguments.args, arguments.keywords)
    operands = [as_operand(x) for x in leaves]
    types = tuple(x.type for x in operands)

    def trace() -> tuple[Program, list[Any], tree.Structure, list[Ref]]:
        flat, scope = FlatFunction(bound, structure), RefScope(as_inputs=True)

        def results_and_refs(*args: Array) -> list[Any]:
            with scope:
                results = flat(*args)
            return [*results, *scope.written_values]

        program, captured = build(results_and_refs, types, function_name(function))
        return program, captured, flat.out_tree, scope.written

    program, captured, out_tree, written = trace_once(
        function, (structure, types, arguments.key, key, trace_context()), trace
    )
    return TracedCall(program, [*operands, *current_values(captured)], out_tree, written)
