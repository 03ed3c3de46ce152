"""KernelCall: a kernel, its grid and its blocks for the types of one call; and its interpreter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.experimental.pallas.blocks import BlockMapping
from shardwise.experimental.pallas.grid_context import GridContext
from shardwise.experimental.pallas.grid_loop import BlockOperand, run_grid
from shardwise.experimental.pallas.grid_spec import GridSpec
from shardwise.experimental.pallas.memory import allocate
from shardwise.lax.manual_axes import make_varying


@final
@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel for the types of one call.

    Attributes:
        kernel: the function of Refs.
        title: its name.
        spec: the grid.
        structure: the structure of the operands.
        prefetched: the number of arguments that are scalar prefetch operands.
        out_shape: the pytree of the types of the results.
        out_types: its leaves.
        aliases: pairs (result, operand whose values it starts with).
        inputs, outputs: the blocks of the operands that are not prefetched, and of the results.
    """

    kernel: Callable[..., Any]
    title: str
    spec: GridSpec
    structure: Any
    prefetched: int
    out_shape: object
    out_types: tuple[Any, ...]
    aliases: tuple[tuple[int, int], ...]
    inputs: tuple[BlockMapping, ...]
    outputs: tuple[BlockMapping, ...]

    def step(self, scalars: Sequence[Any], refs: Sequence[Any], scratch: Any) -> None:
        """Run the kernel.

        Args:
            scalars: the Refs of the scalar prefetch operands, with their structure.
            refs: the Refs of the blocks of the other operands, and of the results.
            scratch: the scratch buffers, with their structure.
        """
        blocked = self.structure.unflatten(range(self.structure.num_leaves))[self.prefetched :]
        of_results = tree.structure(self.out_shape).unflatten(refs[len(self.inputs) :])
        results = of_results if isinstance(self.out_shape, tuple) else (of_results,)
        operands = tree.structure(blocked).unflatten(refs[: len(self.inputs)])
        buffers, named = ((), scratch) if isinstance(scratch, dict) else (scratch, {})
        returned = self.kernel(*scalars, *operands, *results, *buffers, **named)
        if returned is not None:
            raise TypeError(
                f"pallas_call of {self.title!r}: the kernel returned {returned!r}, and a kernel returns nothing: write "
                "the result to a Ref, `out_ref[...] = x`"
            )

    def interpret(self, arrays: Sequence[Any], varying: Sequence[Any] = ()) -> list[Any]:
        """Return the results of all steps of the grid, one after the other.

        Args:
            arrays: the operands.
            varying: the Manual axes over which they vary.
        """
        by_operand = self.structure.unflatten(list(arrays))
        scalars = tree.map(Ref, by_operand[: self.prefetched])
        sources = {result: arrays[operand] for result, operand in self.aliases}
        initial = [
            sources[number] if number in sources else allocate(type, varying)[...]
            for number, type in enumerate(self.out_types)
        ]
        values = [*tree.leaves(by_operand[self.prefetched :]), *initial]
        mappings = [*self.inputs, *self.outputs]
        holders = [Ref(mapping.pad(value)) for mapping, value in zip(mappings, values, strict=True)]
        scratch = tree.map(lambda buffer: allocate(buffer, varying), self.spec.scratch_shapes)
        random_key = Ref(make_varying(jnp.zeros(2, jnp.uint32), tuple(varying)))
        context = GridContext((), self.spec.grid, random_key, tuple(varying))
        blocks = [BlockOperand(mapping, holder) for mapping, holder in zip(mappings, holders, strict=True)]
        run_grid(lambda *refs: self.step(scalars, refs, scratch), blocks, scalars, context)
        finished = zip(self.outputs, holders[len(self.inputs) :], strict=True)
        return [mapping.unpad(holder[...]) for mapping, holder in finished]
