"""functional: a PyTorch module as a pure function of its parameters and buffers."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple, final

import torch
from torch.overrides import TorchFunctionMode

from shardwise.compiler.arrays.methods import Array
from shardwise.errors import ConcretizationTypeError, NonConcreteBooleanIndexError, TorchModuleError
from shardwise.lax.gradient import stop_gradient
from shardwise.torch import ops  # noqa: F401 - registers ops with torchax
from shardwise.torch._torchax import OperatorNotFound, Tensor, run_on_arrays, swap_tensors
from shardwise.torch.module_state import Leaf, module_tensors, to_leaf, to_tensor
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


def functional(module: torch.nn.Module) -> Functional:
    """Return a PyTorch module as a pure function, with its parameters and buffers.

    The module itself is not changed. Parameters and buffers are dicts from the names of `module.state_dict()`, such as
    `layers.7.attn.q_proj.weight`, to copies of the tensors as arrays. Tied parameters are one leaf, under the first of
    their names. Of a module on the `meta` device, the leaves are `ShapeDtypeStruct`s: enough for `explain`, `simulate`,
    `autoshard` and `sweep`.

    Args:
        module: the module. The function computes in the mode, `train()` or `eval()`, that it has now.

    Returns:
        The function, the parameters and the buffers; see `ModuleFunction`.

    Raises:
        TypeError: if `module` is not a module.
        TorchModuleError: if a tensor of the module cannot be an array.

    Example:
        >>> function, params, buffers = functional(torch.nn.Linear(4, 2))
        >>> outputs, buffers = jax.jit(function)(params, buffers, jnp.ones((3, 4)))
        >>> outputs.shape
        (3, 2)
    """
    if not isinstance(module, torch.nn.Module):
        hint = "; create one: " + f"functional({module.__name__}(...))" if isinstance(module, type) else ""
        raise TypeError(f"functional needs a module of torch.nn, not {module!r}{hint}")
    function = ModuleFunction(module)
    leaves = {name: to_leaf(name, tensor) for name, tensor in function.tensors.items()}
    names = function.names
    return Functional(
        function, {name: leaves[name] for name in names.params}, {name: leaves[name] for name in names.buffers}
    )


@final
class ModuleFunction:
    """A PyTorch module as a pure function: `outputs, buffers = function(params, buffers, *inputs)`.

    It can be transformed by `jit`, `grad`, `vmap` and `checkpoint` as any function of arrays.

    Attributes:
        module: the module.
        names: the names of the parameters and buffers, and of tied ones.
    """

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.names, self.tensors = module_tensors(module)
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
        tensors = {
            **self._checked(params, self.names.params, "params"),
            **self._checked(buffers, self.names.buffers, "buffers"),
        }
        trained = {name: tensors[name].jax() for name in self.names.params}
        members = {**tensors, **{alias: tensors[name] for alias, name in self.names.aliases.items()}}
        with _CALL, self._in_recorded_modes(), track_modules(self._paths) as stack:
            try:
                with (
                    run_on_arrays(key if key is not None else _NoKey()),
                    _StopGradients(),
                    swap_tensors(self.module, members),
                ):
                    outputs = to_arrays(self.module(*to_tensors(inputs), **to_tensors(keywords)))
            except (OperatorNotFound, ConcretizationTypeError, NonConcreteBooleanIndexError, AssertionError) as error:
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
        if changed := [name for name, array in trained.items() if members[name].jax() is not array]:
            raise TorchModuleError(
                f"the module assigns to its parameter {changed[0]!r} while it runs, which its caller could not see. "
                "Make it a buffer: buffers are returned"
            )
        return outputs, {name: members[name].jax() for name in self.names.buffers}

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
        arrays = {
            **self._checked(params, self.names.params, "params"),
            **self._checked(buffers, self.names.buffers, "buffers"),
        }
        tensors: dict[str, torch.Tensor] = {}
        for name, like in self.tensors.items():
            tensor = to_tensor(arrays[name].jax(), like)
            is_parameter = isinstance(like, torch.nn.Parameter)
            # One object for all names of a tied parameter: `load_state_dict` would create one for each name.
            tensors[name] = torch.nn.Parameter(tensor, like.requires_grad) if is_parameter else tensor
        tensors |= {alias: tensors[name] for alias, name in self.names.aliases.items()}
        return {name: tensors[name] for name in self.module.state_dict() if name in tensors}

    def _checked(self, tree: Mapping[str, Array], names: tuple[str, ...], role: str) -> dict[str, Any]:
        """Return the leaves of `params` or `buffers` as tensors of torchax."""
        missing, unknown = [name for name in names if name not in tree], [name for name in tree if name not in names]
        if missing or unknown:
            wrong = unknown[0] if unknown else missing[0]
            near = get_close_matches(wrong, names, 1) if unknown else []
            text = f"{wrong!r} is not a name of the module's" if unknown else f"{wrong!r} is missing in the module's"
            if wrong in self.names.aliases:
                hint = f" It is tied to {self.names.aliases[wrong]!r}, which has the value."
            else:
                hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TorchModuleError(f"{self.__name__}: {text} {role}.{hint}")
        for name in names:
            if tuple(tree[name].shape) != tuple(self.tensors[name].shape):
                raise TorchModuleError(
                    f"{self.__name__}: {name!r} has shape {tuple(tree[name].shape)} in {role}, and "
                    f"{tuple(self.tensors[name].shape)} in the module"
                )
        return {name: to_tensors(tree[name]) for name in names}

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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
