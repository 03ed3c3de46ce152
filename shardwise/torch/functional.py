"""functional: a PyTorch module as a pure function of its parameters and buffers."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as torch_pytree

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import ConcretizationTypeError, NonConcreteBooleanIndexError, TorchModuleError
from shardwise.lax.gradient import stop_gradient
from shardwise.torch import ops  # noqa: F401 - registers ops with torchax
from shardwise.torch._torchax import OperatorNotFound, Tensor, run_on_arrays, swap_tensors
from shardwise.torch.fused_projections import Parts, find_fused_parameters
from shardwise.torch.module_state import Leaf, from_numpy, module_tensors, to_leaf, to_tensor
from shardwise.torch.outputs import to_arrays, to_tensors
from shardwise.torch.running_module import (
    cite_model_files,
    describe_place,
    is_inside_checkpoint,
    module_paths,
    running_autograd_function,
    track_modules,
    training_modes,
)
from shardwise.torch.separate_parts import SeparateParts, SplitTensor
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


def functional(module: torch.nn.Module, *, split: Mapping[str, Parts] | None = None) -> Functional:
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

    Returns:
        The function, the parameters and the buffers; see `ModuleFunction`.

    Raises:
        TypeError: if `module` is not a module.
        TorchModuleError: if a tensor of the module cannot be an array, or if `split` does not fit the module.

    Example:
        >>> function, params, buffers = functional(torch.nn.Linear(4, 2))
        >>> outputs, buffers = jax.jit(function)(params, buffers, jnp.ones((3, 4)))
        >>> outputs.shape
        (3, 2)
    """
    if not isinstance(module, torch.nn.Module):
        hint = "; create one: " + f"functional({module.__name__}(...))" if isinstance(module, type) else ""
        raise TypeError(f"functional needs a module of torch.nn, not {module!r}{hint}")
    function = ModuleFunction(module, split or {})
    return Functional(function, function.initial_leaves("params"), function.initial_leaves("buffers"))


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
        self.names, self.tensors = module_tensors(module)
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
        with _CALL, self._in_recorded_modes(), track_modules(self._paths) as stack:
            try:
                with (
                    run_on_arrays(key if key is not None else _NoKey()),
                    _StopGradients(),
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
                    raise TorchModuleError(f"{_CHECKPOINT_ADVICE} It is called in {place}.") from error
                if stack:
                    error.add_note(f"In {describe_place(stack, self._paths, error.__traceback__)}.")
                raise
        changed = {name for name, array in arrays.items() if members[name].jax() is not array}
        if trained := [name for name in self.names.params if name in changed]:
            raise TorchModuleError(
                f"the module assigns to its parameter {trained[0]!r} while it runs, which its caller could not see. "
                "Make it a buffer: buffers are returned"
            )
        return outputs, self._leaves({name: members[name].jax() for name in self.names.buffers})

    def _tensor(self, name: str, leaves: Mapping[str, Array], separate: SeparateParts) -> Any:
        """Return a tensor of the module as a tensor of torchax. The parts of a fused one are known to `separate`."""
        if name not in self.fused.parameters:
            return to_tensors(leaves[name])
        parameter = self.fused.parameters[name]
        parts = parameter.parts(leaves)
        whole = to_tensors(jnp.concatenate(parts, parameter.dim))
        return separate.add(SplitTensor(whole, parameter.dim, tuple(to_tensors(parts))))

    def initial_leaves(self, role: str) -> dict[str, Leaf]:
        """Return the leaves of "params" or "buffers" with the values of the module."""
        return self._leaves({name: to_leaf(name, self.tensors[name]) for name in getattr(self.names, role)})

    def _leaves(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
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
            is_parameter = isinstance(like, torch.nn.Parameter)
            # One object for all names of a tied parameter: `load_state_dict` would create one for each name.
            tensors[name] = torch.nn.Parameter(tensor, like.requires_grad) if is_parameter else tensor
        tensors |= {alias: tensors[name] for alias, name in self.names.aliases.items()}
        return {name: tensors[name] for name in self.module.state_dict() if name in tensors}

    def _checked(self, tree: Mapping[str, Array], role: str) -> Mapping[str, Array]:
        """Check the names and shapes of `params` or `buffers`."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in getattr(self.names, role):
            fused = self.fused.parameters.get(name)
            shapes |= {name: tuple(self.tensors[name].shape)} if fused is None else fused.leaf_shapes()
        missing, unknown = [name for name in shapes if name not in tree], [name for name in tree if name not in shapes]
        if missing or unknown:
            wrong = unknown[0] if unknown else missing[0]
            near = get_close_matches(wrong, shapes, 1) if unknown else []
            text = f"{wrong!r} is not a name of the module's" if unknown else f"{wrong!r} is missing in the module's"
            if wrong in self.names.aliases:
                hint = f" It is tied to {self.names.aliases[wrong]!r}, which has the value."
            else:
                hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TorchModuleError(f"{self.__name__}: {text} {role}.{hint}")
        for name, shape in shapes.items():
            if tuple(tree[name].shape) != shape:
                found = tuple(tree[name].shape)
                raise TorchModuleError(
                    f"{self.__name__}: {name!r} has shape {found} in {role}, and {shape} in the module"
                )
        return tree

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


def _tensors_of(results: object) -> list[Tensor]:
    return [leaf for leaf in torch_pytree.tree_leaves(results) if isinstance(leaf, Tensor)]


class _NoKey:
    """Stands for the key of a call without one: an error where an op needs it."""

    def __jax_array__(self) -> Array:
        raise TorchModuleError(
            "a random op, such as dropout in training mode, needs a PRNG key: pass `key=` to the function"
        )


@final
class _StopGradients(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow PyTorch
    """Stops gradients through the results of functions under `torch.no_grad()`, which torchax does not do.

    A `torch.autograd.Function` also runs without gradients, and has a backward pass of its own, which is not called: it
    is an error.
    """

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.register_hook, torch.Tensor.backward):
            raise TorchModuleError(
                f"a module calls `{func.__name__}` of a tensor: gradients are those of `jax.grad`, not of PyTorch's "
                "autograd. Use `jax.custom_vjp` with `register_op`, or change the gradients that `jax.grad` returns"
            )
        results = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return results
        if (function := running_autograd_function()) is not None:
            raise TorchModuleError(_function_advice(function))
        stopped = results if isinstance(results, (tuple, list)) else [results]
        for result in stopped:
            if isinstance(result, Tensor) and not any(result is argument for argument in args):
                result._elem = stop_gradient(result._elem)
        return results


_CHECKPOINT_ADVICE = (
    "torch.utils.checkpoint is not supported. Switch it off (`gradient_checkpointing_disable()` for models of "
    "transformers), and wrap the function: `jax.checkpoint(function)`."
)


def _function_advice(function: str) -> str:
    if function == "CheckpointFunction":
        return _CHECKPOINT_ADVICE
    return (
        f"the torch.autograd.Function {function} has a backward pass of its own, which gradients here would ignore. "
        "Write it with `jax.custom_vjp`, and register that for an op: `shardwise.torch.register_op(op, function)`"
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
            "create it without `device=`. It is used"
        )
    return (
        f"Python needs the value of a tensor, which a function does not know while it is traced: {error} Use "
        "`torch.where`, or fixed shapes. The value is needed"
    )
