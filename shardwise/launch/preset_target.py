"""Presets of `shardwise.models` as targets of `shardwise autoshard`, `simulate` and `explain`.

The target is the training step of the model. A preset has no shardings: `autoshard` chooses them, on a mesh that is
given or chosen too.
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import models
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.jit import Jitted, jit
from shardwise.launch.load_target import CommandError

LENGTH = 8192  # tokens of a sequence, by default
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgb]?)", re.ASCII | re.IGNORECASE)


@final
@dataclass(frozen=True)
class Batch:
    """The batch of a training step.

    Attributes:
        sequences: the number of sequences of one step, on all devices.
        length: the number of tokens of a sequence.
        microbatches: the parts of the batch whose gradients are accumulated.
    """

    sequences: int
    length: int
    microbatches: int

    @property
    def tokens(self) -> int:
        """The tokens of one step."""
        return self.sequences * self.length

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of tokens, with one more word per sequence, which is only predicted."""
        lead = (self.microbatches,) if self.microbatches > 1 else ()
        return (*lead, self.sequences // self.microbatches, self.length + 1)

    def in_smaller_microbatches(self) -> Iterator["Batch"]:
        """Yield the batch in twice as many microbatches, and so on, as long as they divide the sequences."""
        microbatches = 2 * self.microbatches
        while self.sequences % microbatches == 0:
            yield Batch(self.sequences, self.length, microbatches)
            microbatches *= 2


def is_preset_name(target: str) -> bool:
    """Return whether a target can only be the name of a preset: neither a file nor a function of a module."""
    return bool(_NAME.fullmatch(target)) and not target.endswith((".py", ".mlir", ".mlirbc", ".bin"))


def check_preset_name(target: str) -> None:
    """Raise an error that names similar presets if there is no such preset."""
    if target in models.PRESETS:
        return
    if near := get_close_matches(target, models.PRESETS, 3):
        raise CommandError(f"there is no model {target!r}. Did you mean {' or '.join(map(repr, near))}?")
    raise CommandError(
        f"{target!r} must be FILE.py:FUNCTION, package.module:FUNCTION, or a script FILE.py; or a model: "
        f"{', '.join(models.PRESETS)}"
    )


def parse_batch(parsed: Namespace, devices: int) -> Batch:
    """Return the batch that the command line states. By default, each device has one sequence.

    The default microbatches have one sequence per device, and of short sequences as many as have `LENGTH` tokens.

    Raises:
        CommandError: if the numbers do not agree.
    """
    length = parsed.length or LENGTH
    if parsed.tokens is not None and parsed.sequences is not None:
        raise CommandError("--tokens and --sequences both state the batch: write one of them")
    sequences = parsed.sequences or devices
    if parsed.tokens is not None:
        sequences = max(1, round(parse_number("--tokens", parsed.tokens) / length))
        if parsed.microbatches is None and sequences > devices:
            sequences = devices * round(sequences / devices)  # so that all devices have equally many
    microbatches = parsed.microbatches or (
        _default_microbatches(sequences // devices, length) if sequences % devices == 0 else 1
    )
    if sequences % microbatches:
        raise CommandError(f"--microbatches {microbatches} does not divide the {sequences} sequences of a step")
    return Batch(sequences, length, microbatches)


def _default_microbatches(sequences: int, length: int) -> int:
    """Return the number of microbatches for so many sequences per device."""
    most = max(1, LENGTH // length)
    return sequences // max(size for size in range(1, most + 1) if sequences % size == 0)


def parse_number(option: str, text: str, example: str = "4194304 or 4M") -> float:
    """Return a number such as `4194304` or `4M`. The error of another text shows the example."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise CommandError(f"{option} {text!r}: write a positive number, such as {example}")
    return float(match[1]) * _UNITS[match[2].lower()]


def preset_step(name: str, batch: Batch) -> tuple[Jitted[..., Any], tuple[Any, ...]]:
    """Return the training step of a preset, which donates its state, and the types of its arguments."""
    sizes = models.preset(name)
    step = models.train_step(sizes, batch.microbatches)
    step.__name__ = step.__qualname__ = name  # for the report
    return jit(step, donate_argnums=0), (models.train_state(sizes), ShapeDtypeStruct(batch.shape, jnp.int32))
