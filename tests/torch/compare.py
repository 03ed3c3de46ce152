"""Compare a model on Shardwise with the same model in PyTorch: losses, gradients, bytes per device and on the wire."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import shardwise as jax
from shardwise import NamedSharding, P, strategies
from shardwise.torch import functional, plan_rules
from tests.torch.models import MODELS, Case, build

TOLERANCE = 1e-5
LARGE = 4096  # elements of a matrix that must be sharded


@dataclass
class Comparison:
    """The differences of a model on Shardwise from the model in PyTorch, and the metrics of its plan.

    Attributes:
        loss_error: relative, on one device.
        gradient_error: the largest difference of an element, relative to the largest element of all gradients.
        sharded_loss_error: as `loss_error`, on a mesh.
        sharded_gradient_error: as `gradient_error`, on a mesh.
        pytorch_error: the gradient error of PyTorch itself, relative to its gradients in float64; 0 where the others
            are below `TOLERANCE`. Activations near the kink of a ReLU make gradients depend on rounding.
        parameter_bytes: the bytes of the parameters.
        device_bytes: the bytes of the parameters per device, on the mesh.
        wire_bytes: the bytes that a device sends in one call.
        unsharded_matrices: the names of large parameters of rank 2 or more that are replicated.
    """

    loss_error: float
    gradient_error: float
    sharded_loss_error: float
    sharded_gradient_error: float
    pytorch_error: float
    parameter_bytes: int
    device_bytes: int
    wire_bytes: float
    unsharded_matrices: list[str]


def compare(name: str) -> Comparison:
    """Compare the loss and the gradients of a model of `models.MODELS`."""
    case = build(name)
    function, params, buffers = functional(case.module)

    def loss(params: Any, buffers: Any, inputs: Any) -> Any:
        return case.loss(function(params, buffers, **inputs, **case.options)[0])

    inputs = {name: tensor.numpy() for name, tensor in case.inputs.items()}
    step = jax.jit(jax.value_and_grad(loss))
    value, gradients = step(params, buffers, inputs)

    mesh = jax.make_mesh((4, 2), ("data", "model"))
    if MODELS[name][0] == "transformers":
        model = strategies.tensor_parallel(params, mesh, plan_rules(case.module))
    else:
        model = strategies.fsdp(params, mesh, "model", min_size=LARGE)
    shardings = strategies.fsdp(params, mesh, "data", base=model, min_size=LARGE)
    replicated, batches = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    arguments = (
        jax.device_put(params, shardings),
        jax.device_put(buffers, replicated),
        jax.device_put(inputs, batches),
    )
    sharded_value, sharded_gradients = step(*arguments)

    expected_value, expected = pytorch_gradients(case)
    errors = largest_difference(gradients, expected), largest_difference(sharded_gradients, expected)
    return Comparison(
        loss_error=abs(float(value) - expected_value) / abs(expected_value),
        gradient_error=errors[0],
        sharded_loss_error=abs(float(sharded_value) - expected_value) / abs(expected_value),
        sharded_gradient_error=errors[1],
        pytorch_error=rounding_error(case, expected) if max(errors) > TOLERANCE else 0.0,
        parameter_bytes=sum(leaf.nbytes for leaf in params.values()),
        device_bytes=strategies.count_bytes(params, shardings),
        wire_bytes=step.lower(*arguments).plan.wire_bytes,
        unsharded_matrices=[
            name
            for name, leaf in params.items()
            if leaf.ndim > 1 and leaf.size >= LARGE and shardings[name].shard_shape(leaf.shape) == leaf.shape
        ],
    )


def pytorch_gradients(case: Case) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss and the gradients of PyTorch on the CPU. A parameter that is not used has zeros."""
    case.module.zero_grad()
    loss = case.loss(case.module(**case.inputs, **case.options))
    loss.backward()
    gradients = {
        name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).numpy()
        for name, parameter in case.module.named_parameters()
        if parameter.requires_grad
    }
    return float(loss.detach()), gradients


def rounding_error(case: Case, gradients: dict[str, np.ndarray]) -> float:
    """Return the error of gradients in float32, relative to PyTorch's in float64."""
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in case.inputs.items()}
    _, exact = pytorch_gradients(Case(copy.deepcopy(case.module).double(), inputs, case.loss, case.options))
    return largest_difference(gradients, exact)


def largest_difference(gradients: Any, expected: dict[str, np.ndarray]) -> float:
    """Return the largest difference of an element, relative to the largest element of all gradients."""
    assert gradients.keys() == expected.keys()
    scale = max(float(np.abs(array).max()) for array in expected.values())
    return max(float(np.abs(np.asarray(gradients[name]) - expected[name]).max()) for name in expected) / scale
