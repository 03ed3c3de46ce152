"""Train a residual conv net on generated images: gratings in one of eight orientations, with noise.

    python examples/vision.py                  8 virtual devices: batch, parameters and Adam's state are sharded (FSDP)
    python examples/vision.py --devices 2      continues on two devices

Each device has an eighth of the images, of the parameters and of Adam's state. A step gathers a parameter where it is
used, and sums and scatters its gradient.
"""

from functools import partial

import adam
import numpy as np
from training_run import Run

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import data, lax, nn, random, strategies
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SIZE, CLASSES, CHANNELS = 16, 8, (16, 32)
BATCH, RATE = 64, 3e-3


def init_params(key):
    """Return the parameters: a stem, one block per number of channels, and a linear classifier."""
    keys = iter(random.split(key, 2 + 3 * len(CHANNELS)))

    def kernel(height, width, inputs, outputs):
        scale = (2 / (height * width * inputs)) ** 0.5
        return random.normal(next(keys), (height, width, inputs, outputs)) * scale

    blocks = []
    for inputs, outputs in zip((CHANNELS[0], *CHANNELS), CHANNELS, strict=False):
        first, second, skip = (
            kernel(3, 3, inputs, outputs),
            kernel(3, 3, outputs, outputs),
            kernel(1, 1, inputs, outputs),
        )
        blocks.append({"first": first, "second": second, "skip": skip, "scale": jnp.ones(outputs)})
    head = kernel(1, 1, CHANNELS[-1], CLASSES)[0, 0]
    return {"stem": kernel(3, 3, 1, CHANNELS[0]), "blocks": blocks, "head": head, "bias": jnp.zeros(CLASSES)}


def convolve(images, kernel, stride=1):
    return lax.conv_general_dilated(
        images, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normalize(x, scale):
    """Return every image with mean 0 and variance 1, times a scale for each channel."""
    return scale * nn.standardize(x, axis=(1, 2, 3))


def predict(params, images):
    """Return the logits of the classes."""
    x = convolve(images, params["stem"])
    for block in params["blocks"]:
        y = nn.relu(normalize(convolve(x, block["first"], stride=2), block["scale"]))
        x = nn.relu(convolve(x, block["skip"], stride=2) + convolve(y, block["second"]))
    return x.mean((1, 2)) @ params["head"] + params["bias"]


def loss(params, batch):
    chosen = jnp.take_along_axis(nn.log_softmax(predict(params, batch["images"])), batch["labels"][:, None], -1)
    return -chosen.mean()


@partial(sw.jit, donate_argnums=0)
def train_step(state, batch):
    """Do one step of Adam; return the new state and the loss."""
    value, grads = sw.value_and_grad(loss)(state["params"], batch)
    return adam.update(state, grads, RATE), value


@sw.jit
def accuracy(params, batch):
    """Return the share of images whose most probable class is right."""
    return (predict(params, batch["images"]).argmax(-1) == batch["labels"]).mean()


def init_state(mesh):
    """Return the state of the training; every device has a part of each large array."""
    return adam.init_sharded(init_params, lambda types: strategies.fsdp(types, mesh, "data", min_size=256))


class Gratings:
    """A source of generated images and their classes, by index."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, index))
        label = rng.integers(CLASSES)
        y, x = np.mgrid[:SIZE, :SIZE]
        along = np.cos(np.pi * label / CLASSES) * x + np.sin(np.pi * label / CLASSES) * y
        image = np.sin(0.9 * along + rng.uniform(0, 2 * np.pi)) + 0.5 * rng.normal(size=(SIZE, SIZE))
        return {"images": image[..., None].astype(np.float32), "labels": label.astype(np.int32)}


def batches(mesh, seed=0):
    """Return an iterator of batches of images, sharded over `data`."""
    sharding = NamedSharding(mesh, P("data"))
    return data.BatchIterator(Gratings(4096, seed), sharding, batch_size=BATCH, seed=seed, epochs=None)


def main(arguments=None):
    run = Run.from_command_line("vision", __doc__, arguments, axes=("data",), steps=150)
    state = init_state(run.mesh)
    state, losses = run.train(train_step, state, batches(run.mesh), items=BATCH, unit="images")
    with batches(run.mesh, seed=1) as new_images:
        run.print(f"accuracy on new images: {float(accuracy(state['params'], next(new_images))):.2f}")
    return state, losses


if __name__ == "__main__":
    main()
