"""StagePrograms: the compiled programs of one stage on one mesh.

The forward program returns the result and the residuals that are not arguments. `backward` computes both gradients.
`input_gradient` and `weight_gradient` are the halves of the same backward pass. Each program is compiled once, for all
microbatches. `gather` and `reduce` run once per step, before and after all others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from shardwise import tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import with_sharding_constraint
from shardwise.api.transformations.differentiate import vjp
from shardwise.api.transformations.remat import checkpoint
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.control.split_outputs import split_outputs
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding, unreduced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.checkpoint_policy import Policy
from shardwise.compiler.transforms.replay import replay
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.accumulation import Accumulation, Specs, add, zeros
from shardwise.parallel.mpmd.array_types import with_shardings

StageFunction = Callable[..., Any]  # (params, x, *targets) → the input of the next stage, the loss, or (loss, aux)


@final
class StageTypes(NamedTuple):
    """The types of a stage's arguments and result for one microbatch, with shardings.

    Attributes:
        params: the parameters.
        x: the input.
        targets: the further arguments of the last stage.
        result: the result.
        aux: the auxiliary results of the last stage, perhaps an empty pytree; None for other stages.
    """

    params: Any
    x: Any
    targets: tuple[Any, ...]
    result: Any
    aux: Any = None


@final
class Halves(NamedTuple):
    """The compiled halves of a backward pass.

    Attributes:
        captured: arrays that the stage function closes over, the last operands of the backward pass.
        kept: the indices of the operands that `second` reads.
        first: operands → cotangents of the input, shared values.
        second: totals, shared values, kept operands → totals with the gradients of a microbatch added.
    """

    captured: list[Any]
    kept: tuple[int, ...]
    first: Callable[..., Any]
    second: Callable[..., Any]


@final
class StagePrograms:
    """The programs of a stage.

    Attributes:
        mesh: the devices on which the stage runs.
        types: the types of its arguments and result, with shardings.
        accumulation: the shardings of parameters and sums of gradients during a step.
        gathered_types: the types of the parameters as tasks read them.
        sum_types: the types of the sums of gradients.
        gather: converts the leaves of the parameters to the shardings in which tasks read them.
        reduce: converts the sums of gradients to the shardings of the parameters.
        forward: the forward program.
        backward: the backward program; it adds the gradients of a microbatch to the sums.
        zeros: returns sums of no gradients, as a function of the parameters.

    Args:
        function: the function of the stage.
        name: the name of the stage, for messages and profiles.
        mesh: the devices on which the stage runs.
        spec: the PartitionSpec of the stage's input and result. A leaf with fewer dims uses its first entries.
        types: the types of its arguments and result, without shardings, except for the parameters.
        accumulation: the shardings of parameters and sums of gradients during a step.
        remat: whether the backward pass recomputes all residuals, or a policy of `checkpoint` that selects them.
        has_input_gradient: whether the gradient of the stage's input is needed.
        has_aux: whether the stage returns a pair (loss, aux).
    """

    def __init__(
        self,
        function: StageFunction,
        name: str,
        mesh: Mesh | AbstractMesh,
        spec: PartitionSpec,
        types: StageTypes,
        accumulation: Accumulation,
        remat: bool | Policy,
        has_input_gradient: bool,
        has_aux: bool,
    ):
        self.mesh = mesh
        self._spec = spec
        self._name = name
        self.types = StageTypes(types.params, *map(self.with_shardings, types[1:]))
        self.accumulation = accumulation
        self._has_input_gradient = has_input_gradient
        self._has_aux = has_aux
        self._function = function
        if remat is not False:
            self._function = checkpoint(function, policy=None if remat is True else remat)
        self._halves: dict[Any, Halves] = {}
        leaves, floats = tree_util.tree_leaves(types.params), split_floats(types.params)[0]
        gathered = self._shardings(leaves, accumulation.params)
        self._sum_shardings = self._shardings(floats, accumulation.sums)
        self.gathered_types = with_shardings(types.params, gathered)
        self.sum_types: list[Any] = with_shardings(floats, self._sum_shardings)
        self.gather = Conversion(self._named(_identity, "gather"), [leaf.sharding for leaf in leaves], gathered)
        self.reduce = Conversion(
            self._named(_identity, "reduce"), self._sum_shardings, [leaf.sharding for leaf in floats]
        )
        self.forward = jit(self._named(self._forward, "forward"))
        self.backward = jit(
            self._named(self._backward, "backward"), out_shardings=(self._sum_shardings, None), donate_argnums=(4,)
        )
        self.zeros = jit(self._named(zeros, "zeros"), out_shardings=self._sum_shardings)

    def _named(self, function: Callable[..., Any], suffix: str) -> Callable[..., Any]:
        """Return the function under the name of the stage."""

        def call(*args: Any) -> Any:
            return function(*args)

        call.__name__ = call.__qualname__ = f"{self._name}_{suffix}"
        return call

    def sharding(self, ndim: int) -> NamedSharding:
        """Return the sharding of a leaf of the stage's input or result."""
        return NamedSharding(self.mesh, PartitionSpec(*self._spec[:ndim]))

    @property
    def is_local(self) -> bool:
        """Whether this process has devices of the mesh, so that it runs the programs."""
        return self.sharding(0).has_addressable_devices

    def with_shardings(self, types: object) -> Any:
        """Return types of the stage's input or result with their shardings."""
        return tree_util.tree_map(
            lambda leaf: ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding(leaf.ndim)), types
        )

    def tasks(
        self, params: object, x: object, targets: tuple[Any, ...], cotangents: list[Any]
    ) -> tuple[Any, list[Array], list[Array]]:
        """Run the forward and the backward pass of a microbatch."""
        y, _, pull_back = stage_vjp(self._function, params, x, targets, self._has_aux)
        param_cotangents, x_cotangents = pull_back(cotangents)
        return self._constrain(y), param_cotangents, self._constrain(x_cotangents) if self._has_input_gradient else []

    def _shardings(self, leaves: Sequence[Any], specs: Specs) -> list[Sharding]:
        """Return the shardings of parameters or sums of gradients during a step."""
        return [
            leaf.sharding if spec is None else unreduced_sharding(self.mesh, spec)
            for leaf, spec in zip(leaves, specs, strict=True)
        ]

    def _constrain(self, tree: object) -> Any:
        """Pin the shardings of arrays that are sent to other meshes."""
        return tree_util.tree_map(lambda leaf: with_sharding_constraint(leaf, self.sharding(leaf.ndim)), tree)

    def _forward(self, params: object, x: object, targets: tuple[object, ...]) -> Any:
        """Return the result, auxiliary results, and the vjp function without the residuals that are arguments."""
        y, aux, pull_back = stage_vjp(self._function, params, x, targets, self._has_aux)
        pull_back.args_res = []  # the backward pass gets parameters and input again, without a copy
        return self._constrain(y), self._constrain(aux), pull_back

    def _gradients(self, params: object, x: object, pull_back: Any, cotangents: list[Any]) -> tuple[Any, Any]:
        """Return the cotangents of the floating-point leaves of the parameters and of the input."""
        pull_back.args_res = [split_floats(params)[0], split_floats(x)[0]]
        param_cotangents, x_cotangents = pull_back(cotangents)
        return param_cotangents, self._constrain(x_cotangents) if self._has_input_gradient else []

    def _backward(
        self, params: object, x: object, pull_back: Any, cotangents: list[Any], totals: list[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Return the totals with the gradients of a microbatch added, and the cotangents of the input."""
        terms, x_cotangents = self._gradients(params, x, pull_back, cotangents)
        return add(totals, terms), x_cotangents

    def input_gradient(
        self, params: object, x: object, pull_back: Any, cotangents: list[Any]
    ) -> tuple[list[Array], Callable[[list[Array]], list[Array]]]:
        """Return the cotangents of the input, and a function that adds the weight gradient to the totals.

        The function holds the values that the weight gradient needs.
        """
        operands = params, x, pull_back, cotangents
        halves = self.halves(operands)
        leaves = [*tree_util.tree_leaves(operands), *halves.captured]
        x_cotangents, shared = halves.first(leaves)
        kept = [leaves[index] for index in halves.kept]
        return x_cotangents, lambda totals: halves.second(totals, shared, kept)

    def halves(self, operands: tuple[Any, ...]) -> Halves:
        """Return the halves of the backward pass for operands of these types."""
        leaves, structure = tree_util.tree_flatten(operands)
        types = [type_of(leaf) for leaf in leaves]
        key = structure, tuple(types)
        if key not in self._halves:
            self._halves[key] = self._split(structure, types)
        return self._halves[key]

    def _split(self, structure: Any, types: Sequence[Any]) -> Halves:
        """Trace the backward pass, and split it into its input and its weight gradient."""
        count = 0  # the number of cotangents of the input

        def backward(*leaves: Array) -> list[Array]:
            nonlocal count
            param_cotangents, x_cotangents = self._gradients(*tree_util.tree_unflatten(structure, leaves))
            count = len(x_cotangents)
            return [*x_cotangents, *param_cotangents]

        program, captured = build(backward, types, f"{self._name}_backward")
        split = split_outputs(program, [index < count for index in range(len(program.outputs))])

        def first(operands: list[Array]) -> tuple[list[Array], list[Array]]:
            outputs = replay(split.first, operands)
            return outputs[:count], outputs[count:]

        def second(totals: list[Array], shared: list[Array], kept: list[Array]) -> list[Array]:
            return add(totals, replay(split.second, [*shared, *kept]))

        return Halves(
            captured,
            split.kept,
            jit(self._named(first, "input_gradient")),
            jit(self._named(second, "weight_gradient"), out_shardings=self._sum_shardings, donate_argnums=(0,)),
        )


def stage_vjp(
    function: StageFunction, params: object, x: object, targets: tuple[object, ...], has_aux: bool = False
) -> tuple[Any, Any, Any]:
    """Return the result of a stage, its auxiliary results, and its vjp function.

    The vjp function is that of the floating-point leaves of parameters and input.

    Args:
        function: the function of the stage.
        params, x, targets: its arguments.
        has_aux: whether it returns a pair (loss, aux). Otherwise aux is None.
    """
    param_floats, param_others, join_params = split_floats(params)
    x_floats, x_others, join_x = split_floats(x)

    def run(param_floats: list[Any], x_floats: list[Any]) -> tuple[list[Any], Any]:
        results = function(join_params(param_floats, param_others), join_x(x_floats, x_others), *targets)
        y, aux = results if has_aux else (results, None)
        return split_floats(y)[0], (y, aux)

    _, pull_back, (y, aux) = vjp(run, param_floats, x_floats, has_aux=True)
    return y, aux, pull_back


@final
class Conversion:
    """Converts a list of arrays to other shardings in one program, which has only the arrays that change.

    Attributes:
        changes: the indices of the arrays that change.
        function: the program; None if no array changes.

    Args:
        identity: returns its argument, a list of arrays.
        sources: the shardings of the arrays.
        targets: the shardings to convert to.
    """

    def __init__(self, identity: Callable[..., Any], sources: Sequence[Sharding], targets: Sequence[Sharding]):
        pairs = enumerate(zip(sources, targets, strict=True))
        self.changes = [index for index, (source, target) in pairs if source is not target]
        self.function = (
            jit(identity, out_shardings=[targets[index] for index in self.changes]) if self.changes else None
        )

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        results = list(arrays)
        if self.function is not None:
            converted = self.function([arrays[index] for index in self.changes])
            for index, array in zip(self.changes, converted, strict=True):
                results[index] = array
        return results


def _identity(arrays: list[Array]) -> list[Array]:
    return arrays
