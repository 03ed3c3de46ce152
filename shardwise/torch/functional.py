"""functional: a PyTorch module as a pure function of its parameters and buffers."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch.utils import _pytree as torch_pytree

import shardwise.numpy as jnp
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import ConcretizationTypeError, NonConcreteBooleanIndexError, TorchModuleError
from shardwise.torch import ops  # noqa: F401 - registers ops with torchax
from shardwise.torch._torchax import OperatorNotFound, Tensor, run_on_arrays, swap_tensors
from shardwise.torch.fused_projections import Parts, find_fused_parameters
from shardwise.torch.module_state import (
    Leaf,
    from_numpy,
    module_tensors,
    place_values,
    to_tensor,
    to_values,
    without_values,
)
from shardwise.torch.outputs import to_arrays, to_tensors
from shardwise.torch.running_module import (
    cite_model_files,
    describe_place,
    is_inside_checkpoint,
    module_paths,
    track_modules,
    training_modes,
)
from shardwise.torch.running_statistics import cumulative_momenta
from shardwise.torch.separate_parts import SeparateParts, SplitTensor
from shardwise.torch.stop_gradients import StopGradients
from shardwise.torch.unsupported_functions import CHECKPOINT_ADVICE
from shardwise.torch.unsupported_modules import check_module
from shardwise.torch.view_aliases import StaleViewError, ViewAliases, check

# A call exchanges the tensors of the module, which another thread must not see.
_CALL = threading.RLock()


class Functional(NamedTuple):
    """A module as a function and its state.

    Attributes:
        function: the pure function.
        params: the parameters that require gradients, by their paths in the module.
        buffers: the buffers, and the parameters that do not require gradients, by their paths.
    """

    function: "ModuleFunction"
    params: dict[str, Leaf]
    buffers: dict[str, Leaf]


Shardings = Mapping[str, Sharding]


def functional(
    module: torch.nn.Module,
    *,
    split: Mapping[str, Parts] | None = None,
    shardings: Shardings | Callable[[dict[str, ShapeDtypeStruct]], Shardings] | None = None,
) -> Functional:
    """Return a PyTorch module as a pure function, with its parameters and buffers.

    The module itself is not changed. Parameters and buffers are dicts from the names of `module.state_dict()`, such as
    `layers.7.attn.q_proj.weight`, to copies of the tensors as arrays. Tied parameters are one leaf, under the first of
    their names. Of a module on the `meta` device, the leaves are `ShapeDtypeStruct`s: enough for `explain`, `simulate`,
    `autoshard` and `sweep`.

    Args:
        module: the module. The function computes in the mode, `train()` or `eval()`, that it has now.
        split: the fused projections whose parts are stored apart, so that each part is sharded alone. Paths of modules
            or parameters, in which `*` stands for one name and `**` for any path, and the number of parts of one size,
            which get a dim of their own ([3 * d, in] is [3, d, in]), or a dict of sizes, which become leaves of their
            own (`qkv_proj.weight.q`). `fused_projections(module)` returns those that are known.
        shardings: the sharding of each parameter, also of frozen ones, by its name, or a function that returns them for
            the types of all parameters and buffers. Tensors are copied to their shards one after the other, so that no
            device has a parameter that is sharded. Leaves on the `meta` device have the sharding, as `load_safetensors`
            needs it. Without it, all leaves are on the default device, and so are buffers without a sharding.

    Returns:
        The function, the parameters and the buffers; see `ModuleFunction`.

    Raises:
        TypeError: if `module` is not a module.
        TorchModuleError: if a tensor of the module cannot be an array, if `split` does not fit the module, or if a
            parameter has no sharding or one that it cannot have.

    Example:
        >>> function, params, buffers = functional(torch.nn.Linear(4, 2))
        >>> outputs, buffers = jax.jit(function)(params, buffers, jnp.ones((3, 4)))
        >>> outputs.shape
        (3, 2)
        >>> mesh = jax.make_mesh((2,), ("data",))
        >>> module = torch.nn.Linear(128, 256)
        >>> _, params, _ = functional(module, shardings=lambda types: jax.strategies.fsdp(types, mesh, "data"))
        >>> params["weight"].sharding.spec
        P('data', None)
    """
    if not isinstance(module, torch.nn.Module):
        hint = "; create one: " + f"functional({module.__name__}(...))" if isinstance(module, type) else ""
        raise TypeError(f"functional needs a module of torch.nn, not {module!r}{hint}")
    _, tensors = module_tensors(module)
    function = ModuleFunction(module, split or {})
    chosen = function.check_shardings(shardings)

    def leaves(names: Sequence[str]) -> dict[str, Leaf]:
        values = ({name: to_values(name, tensors[name])} for name in names)
        parts = (part for each in values for part in function.leaves(each).items())
        return {leaf: place_values(leaf, part, chosen.get(leaf)) for leaf, part in parts}

    return Functional(function, leaves(function.names.params), leaves(function.names.buffers))


@final
class ModuleFunction:
    """A PyTorch module as a pure function: `outputs, buffers = function(params, buffers, *inputs)`.

    It can be transformed by `jit`, `grad`, `vmap` and `checkpoint` as any function of arrays.

    Attributes:
        module: the module.
        names: the names of the parameters and buffers, and of tied ones.
        fused: the fused projections whose parts are stored apart.
    """

    def __init__(self, module: torch.nn.Module, split: Mapping[str, Parts]):
        check_module(module)
        self.module = module
        self.names, tensors = module_tensors(module)
        # Without values: the module's own can be dropped by `module.to("meta")`.
        self.tensors = {name: without_values(tensor) for name, tensor in tensors.items()}
        self.fused = find_fused_parameters(module, self.tensors, split)
        self._modes = training_modes(module)
        self._paths = module_paths(module)
        self.__name__ = type(module).__name__
        cite_model_files(module)

    def __repr__(self) -> str:
        return f"<function of the module {self.__name__}>"

    def __call__(
        self,
        params: Mapping[str, Array],
        buffers: Mapping[str, Array],
        /,
        *inputs: object,
        key: Array | None = None,
        **keywords: object,
    ) -> tuple[Any, dict[str, Array]]:
        """Call the module with parameters, buffers and inputs.

        Args:
            params: the parameters by their names.
            buffers: the buffers by their names.
            inputs: the arguments of the module's `forward`. Arrays become tensors.
            key: the PRNG key of random ops, such as dropout in training mode.
            keywords: the keyword arguments of `forward`.

        Returns:
            The results of the module with arrays instead of tensors, and the buffers after the call.

        Raises:
            TorchModuleError: if a parameter or a buffer is missing, unknown or has another shape; if torchax lacks an
                op; if the module's control flow depends on the values of tensors; or if a random op has no key.
        """
        leaves = {**self._checked(params, "params"), **self._checked(buffers, "buffers")}
        separate = SeparateParts()
        tensors = {name: self._tensor(name, leaves, separate) for name in self.tensors}
        arrays = {name: tensor.jax() for name, tensor in tensors.items()}
        members = {**tensors, **{alias: tensors[name] for alias, name in self.names.aliases.items()}}
        with (
            _CALL,
            self._in_recorded_modes(),
            cumulative_momenta(self.module),
            track_modules(self._paths) as stack,
        ):
            try:
                with (
                    run_on_arrays(key if key is not None else _NoKey()),
                    StopGradients(),
                    ViewAliases(),
                    separate,
                    swap_tensors(self.module, members),
                ):
                    results = self.module(*to_tensors(inputs), **to_tensors(keywords))
                    separate.update()
                    for tensor in [*_tensors_of(results), *members.values()]:
                        check(tensor, "the caller")
                    outputs = to_arrays(results)
            except (
                OperatorNotFound,
                ConcretizationTypeError,
                NonConcreteBooleanIndexError,
                StaleViewError,
                AssertionError,
            ) as error:
                place = describe_place(stack, self._paths, error.__traceback__)
                message = _explanation(error)
                if message is None:
                    raise
                raise TorchModuleError(f"{message} in {place}.") from error
            except Exception as error:
                if is_inside_checkpoint(error.__traceback__):
                    place = describe_place(stack, self._paths, error.__traceback__)
                    raise TorchModuleError(f"{CHECKPOINT_ADVICE} It is called in {place}.") from error
                if stack:
                    error.add_note(f"In {describe_place(stack, self._paths, error.__traceback__)}.")
                raise
        changed = {name for name, array in arrays.items() if members[name].jax() is not array}
        if trained := [name for name in self.names.params if name in changed]:
            raise TorchModuleError(
                f"the module assigns to its parameter {trained[0]!r} while it runs, which its caller could not see. "
                "Make it a buffer: buffers are returned"
            )
        return outputs, self.leaves({name: members[name].jax() for name in self.names.buffers})

    def _tensor(self, name: str, leaves: Mapping[str, Array], separate: SeparateParts) -> Any:
        """Return a tensor of the module as a tensor of torchax. The parts of a fused one are known to `separate`."""
        if name not in self.fused.parameters:
            return to_tensors(leaves[name])
        parameter = self.fused.parameters[name]
        parts = parameter.parts(leaves)
        whole = to_tensors(jnp.concatenate(parts, parameter.dim))
        return separate.add(SplitTensor(whole, parameter.dim, tuple(to_tensors(parts))))

    def check_shardings(
        self, shardings: Shardings | Callable[[dict[str, ShapeDtypeStruct]], Shardings] | None
    ) -> Shardings:
        """Return the sharding of each leaf that has one.

        Raises:
            TorchModuleError: if a parameter has none, or a name is unknown.
        """
        if shardings is None:
            return {}
        types = self.leaves({name: to_values(name, tensor) for name, tensor in self.tensors.items()})
        chosen = shardings(types) if callable(shardings) else shardings
        if unknown := [name for name in chosen if name not in types]:
            raise TorchModuleError(
                f"functional: `shardings` has {unknown[0]!r}, which is not a name of the module's state."
                f"{self._hint(unknown[0], types)}"
            )
        parameters = self.leaves({n: to_values(n, t) for n, t in self.tensors.items() if _is_parameter(t)})
        if missing := [name for name in parameters if name not in chosen]:
            raise TorchModuleError(
                f"functional: `shardings` has none for the parameter {missing[0]!r}. A replicated one is "
                "`NamedSharding(mesh, P())`; `strategies.fsdp` and others return them for all"
            )
        return chosen

    def leaves(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays with the parts of fused parameters apart."""
        leaves: dict[str, Any] = {}
        for name, array in arrays.items():
            fused = self.fused.parameters.get(name)
            leaves |= {name: array} if fused is None else fused.split(array)
        return leaves

    def state_dict(self, params: Mapping[str, Array], buffers: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Return parameters and buffers as PyTorch's `state_dict`, for `module.load_state_dict(…, assign=True)`.

        Args:
            params: the parameters by their names.
            buffers: the buffers by their names.

        Returns:
            The tensors by the names of `module.state_dict()`. Arrays on one device share their memory with them: do not
            change the tensors in place while the arrays are in use. Sharded arrays are gathered, one after the other.

        Raises:
            TorchModuleError: if a parameter or a buffer is missing, unknown or has another shape.
        """
        leaves = {**self._checked(params, "params"), **self._checked(buffers, "buffers")}
        tensors: dict[str, torch.Tensor] = {}
        for name, like in self.tensors.items():
            fused = self.fused.parameters.get(name)
            if fused is None:
                tensor = to_tensor(leaves[name], like)
            else:
                tensor = from_numpy(fused.join({leaf: np.array(leaves[leaf]) for leaf in fused.leaves})).to(like.dtype)
            # One object for all names of a tied parameter: `load_state_dict` would create one for each name.
            tensors[name] = torch.nn.Parameter(tensor, like.requires_grad) if _is_parameter(like) else tensor
        tensors |= {alias: tensors[name] for alias, name in self.names.aliases.items()}
        return {name: tensors[name] for name in self.module.state_dict() if name in tensors}

    def _checked(self, tree: Mapping[str, Array], role: str) -> Mapping[str, Array]:
        """Check the names, shapes and kinds of dtype of `params` or `buffers`."""
        expected: dict[str, ShapeDtypeStruct] = {}
        for name in getattr(self.names, role):
            expected |= self.leaves({name: to_values(name, self.tensors[name])})
        unknown = [name for name in tree if name not in expected]
        missing = [name for name in expected if name not in tree]
        if missing or unknown:
            wrong = unknown[0] if unknown else missing[0]
            text = f"{wrong!r} is not a name of the module's" if unknown else f"{wrong!r} is missing in the module's"
            raise TorchModuleError(f"{self.__name__}: {text} {role}.{self._hint(wrong, expected) if unknown else ''}")
        for name, type in expected.items():
            leaf = tree[name]
            if isinstance(leaf, ShapeDtypeStruct):
                raise TorchModuleError(
                    f"{self.__name__}: {name!r} has no values in {role}, because the module is on the `meta` device. "
                    "Load them, as by `load_safetensors`; create the module under `meta_parameters()`, so that buffers "
                    "have values; or plan the function: `explain` and `jax.eval_shape` need none"
                )
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                raise TorchModuleError(f"{self.__name__}: {name!r} is {leaf!r} in {role}, which is not an array")
            if tuple(leaf.shape) != type.shape:
                raise TorchModuleError(
                    f"{self.__name__}: {name!r} has shape {tuple(leaf.shape)} in {role}, and {type.shape} in the module"
                )
            if jnp.issubdtype(leaf.dtype, jnp.inexact) != jnp.issubdtype(type.dtype, jnp.inexact):
                raise TorchModuleError(
                    f"{self.__name__}: {name!r} has dtype {leaf.dtype} in {role}, and {type.dtype} in the module: only "
                    "the precision of floats may differ"
                )
        return tree

    def _hint(self, unknown: str, names: Collection[str]) -> str:
        """Return which name may be meant by one that is unknown."""
        if unknown in self.names.aliases:
            return f" It is tied to {self.names.aliases[unknown]!r}, which has the value."
        near = get_close_matches(unknown, names, 1)
        return f" Did you mean {near[0]!r}?" if near else ""

    @contextmanager
    def _in_recorded_modes(self) -> Iterator[None]:
        """Set each submodule to the mode that it had when the function was created, inside a `with` block."""
        now = [(submodule, submodule.training) for submodule, _ in self._modes]
        try:
            for submodule, training in self._modes:
                submodule.training = training
            yield
        finally:
            for submodule, training in now:
                submodule.training = training


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _tensors_of(results: object) -> list[Tensor]:
    return [leaf for leaf in torch_pytree.tree_leaves(results) if isinstance(leaf, Tensor)]


class _NoKey:
    """Stands for the key of a call without one: an error where an op needs it."""

    def __jax_array__(self) -> Array:
        raise TorchModuleError(
            "a random op, such as dropout in training mode, needs a PRNG key: pass `key=` to the function"
        )


def _explanation(error: Exception) -> str | None:
    """Return what is wrong and what to do, or None for an error of the module's own."""
    if isinstance(error, OperatorNotFound):
        name = str(error).removeprefix("Operator with name ").removesuffix(" has no lowering")
        return (
            f"torchax does not have the op {name}. Register a function of arrays for it: "
            "`shardwise.torch.register_op(op, function)`. The op is used"
        )
    if isinstance(error, StaleViewError):
        return (
            f"{error}, which torchax does for slices only. Change the tensor itself, `x[...] = values`, or write the "
            "function without a change in place. It is needed"
        )
    if isinstance(error, AssertionError):
        if "mixed math between XLATensor and torch.Tensor" not in str(error):
            return None
        return (
            "a tensor that is not part of the module's state is mixed with traced ones. Register it as a buffer, or "
            "create it without `device=`. A tensor inside `torch.func.grad` is one too: write that part as a function "
            "of arrays, and transform it by `jax.grad`. It is used"
        )
    return (
        f"Python needs the value of a tensor, which a function does not know while it is traced: {error} Use "
        "`torch.where`, or fixed shapes. The value is needed"
    )
