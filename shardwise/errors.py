"""Public exceptions. Names that JAX also has mean the same here.

A class names the section of docs/troubleshooting.md that explains it. Tracebacks show the link below the message.
"""

from typing import ClassVar

from shardwise.base._jaxlib import RuntimeFailure as JaxRuntimeError
from shardwise.base.lazy import set_public_names

__all__ = [
    "AutoshardError",
    "BroadcastError",
    "CheckpointError",
    "CheckpointExists",
    "CheckpointMismatch",
    "CheckpointNotFound",
    "ConcretizationTypeError",
    "CorruptCheckpoint",
    "DataError",
    "DataStateMismatch",
    "DeviceMismatchError",
    "EndOfDataError",
    "ForbiddenCollectiveError",
    "HardwareError",
    "InconclusiveDimensionOperation",
    "JAXIndexError",
    "JAXTypeError",
    "JaxRuntimeError",
    "JaxprTypeError",
    "KernelError",
    "KeyReuseError",
    "MissingRuleError",
    "NoMeshError",
    "NonConcreteBooleanIndexError",
    "OutOfMemoryError",
    "PeerFailure",
    "PlatformError",
    "ProfileError",
    "ProgramError",
    "ProgramMismatch",
    "RendezvousError",
    "ShardingError",
    "ShardingTypeError",
    "StrategyError",
    "TangentMismatchError",
    "TorchModuleError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "TransferError",
    "TypePromotionError",
    "UnboundAxisError",
    "UnexpectedTracerError",
    "UnsupportedError",
]


_PAGE = "https://github.com/shardwise/shardwise/blob/main/docs/troubleshooting.md"


class _DocumentedError(Exception):
    """An error with a link to the section of the documentation that explains it.

    The link is a note and no part of the message, which programs may compare with JAX's.
    """

    link: ClassVar[str]

    def __init_subclass__(cls, section: str | None = None) -> None:
        """Set the link of a class, and add it to the docstring after the first paragraph.

        Args:
            section: the anchor of the section; by default that of the base class.
        """
        super().__init_subclass__()
        if section is not None:
            cls.link = f"{_PAGE}#{section}"
            summary, _, rest = (cls.__doc__ or "").partition("\n\n")
            cls.__doc__ = "\n\n".join(part for part in (summary.rstrip(), f"    See {cls.link}", rest) if part)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"See {self.link}")


class OutOfMemoryError(_DocumentedError, JaxRuntimeError, section="outofmemoryerror"):  # type: ignore[misc]
    """A device does not have enough memory for a program or an array."""


class KernelError(_DocumentedError, JaxRuntimeError, section="a-kernel-cannot-be-compiled"):  # type: ignore[misc]
    """A Triton kernel cannot be compiled.

    Attributes:
        kernel: the name of the kernel.
        reason: what is wrong with it.
        place: the user's line; empty if it is unknown.
    """

    def __init__(self, kernel: str, reason: str, place: str = ""):
        super().__init__(f"the kernel {kernel!r}{f' at {place}' if place else ''} cannot be compiled: {reason}")
        self.kernel, self.reason, self.place = kernel, reason, place

    def at(self, place: str) -> "KernelError":
        """Return the error with the user's line."""
        return KernelError(self.kernel, self.reason, place)

    def __reduce__(self) -> tuple[object, ...]:
        return KernelError, (self.kernel, self.reason, self.place)


class TransferError(_DocumentedError, JaxRuntimeError, section="a-transfer-is-disallowed-here"):  # type: ignore[misc]
    """A transfer guard disallows a transfer between host and devices."""


class PeerFailure(_DocumentedError, JaxRuntimeError, section="several-processes"):  # type: ignore[misc]
    """Another process of the program failed: it was lost, is stuck, or ended too early.

    Attributes:
        rank: the number of the process that failed; -1 if it is unknown.
        step: the last step that it reported with `distributed.report_step`, or None.
        reason: what happened, in words.
        detail: its traceback or Python stack, if it could send one.
    """

    def __init__(self, rank: int, step: int | None, reason: str, detail: str = ""):
        where = f"process {rank} failed" if rank >= 0 else "a process failed"
        after = f" after step {step}" if step is not None else ""
        text = f"{where}{after}: {reason}"
        super().__init__(f"{text}\n{detail.rstrip()}" if detail else text)
        self.rank, self.step, self.reason, self.detail = rank, step, reason, detail

    def __reduce__(self) -> tuple[object, ...]:
        return PeerFailure, (self.rank, self.step, self.reason, self.detail)


class ProgramMismatch(_DocumentedError, JaxRuntimeError, section="several-processes"):  # type: ignore[misc]
    """The processes of a set launched different programs, or the same programs in a different order."""


class PlatformError(_DocumentedError, RuntimeError, section="the-pjrt-plugin--cannot-be-used"):
    """A platform is unknown, its PJRT plugin cannot be loaded, or it has no usable device.

    Attributes:
        platform: the name of the platform.
    """

    def __init__(self, text: str, platform: str):
        super().__init__(text)
        self.platform = platform

    def __reduce__(self) -> tuple[object, ...]:
        return PlatformError, (self.args[0], self.platform)


class RendezvousError(_DocumentedError, RuntimeError, section="several-processes"):
    """This process cannot join the others: the coordinator is unreachable or refuses it, or a process is missing."""


class JAXTypeError(_DocumentedError, TypeError, section="traced-values"):
    """A value of this type cannot be used here."""

    def __init__(self, message: str):
        super().__init__(message)


class JAXIndexError(_DocumentedError, IndexError, section="traced-values"):
    """An index is not valid."""

    def __init__(self, message: str):
        super().__init__(message)


class JaxprTypeError(_DocumentedError, TypeError, section="errors-that-only-libraries-raise"):
    """A jaxpr is not well typed. Libraries that check jaxprs raise it; programs of this package raise ProgramError."""


class InconclusiveDimensionOperation(_DocumentedError, section="errors-that-only-libraries-raise"):
    """A comparison of symbolic dims has no definite answer. Dims are integers here: only libraries raise it."""


class ShardingError(_DocumentedError, ValueError, section="shardings"):
    """A sharding is not valid: an unknown mesh axis, an axis used twice, or a spec that does not fit its array."""


class ForbiddenCollectiveError(_DocumentedError, Exception, section="no-collectives"):
    """An op communicates along a mesh axis that `sharding.no_collectives` forbids."""


class AutoshardError(_DocumentedError, ValueError, section="no-plan-fits-in-memory"):
    """No plan of a step fits in the memory of the devices.

    Attributes:
        least: the plan that needs the least memory, of those that were compared.
        larger: a plan on the smallest number of devices, by doubling, on which one was found to fit; None without one.
    """

    def __init__(self, text: str, least: object, larger: object = None):
        super().__init__(text)
        self.least, self.larger = least, larger

    def __reduce__(self) -> tuple[object, ...]:
        return AutoshardError, (self.args[0], self.least, self.larger)


class ShardingTypeError(ShardingError, TypeError, section="the-sharding-of-the-result-is-ambiguous"):
    """The types of operands conflict along Explicit mesh axes, or leave the sharding of a result ambiguous.

    Also the error for reading the elements of an unreduced array.
    """


class DeviceMismatchError(
    _DocumentedError, ValueError, RuntimeError, section="cannot-run-on-different-devices-at-once"
):
    """The operands of one computation are on different devices, or a program has none to run on."""


class NoMeshError(_DocumentedError, TypeError, ValueError, RuntimeError, section="a-bare-partitionspec-needs-a-mesh"):
    """A bare PartitionSpec is passed, and no mesh is set that it could refer to."""


class TypePromotionError(_DocumentedError, TypeError, ValueError, section="have-no-common-dtype"):
    """The dtypes of the operands have no common dtype to promote to: one of them must be converted."""


class TangentMismatchError(
    _DocumentedError, TypeError, ValueError, section="the-tangent-has-another-type-than-the-value"
):
    """A tangent or cotangent has another structure, shape or dtype than the value that it belongs to."""


class ConcretizationTypeError(JAXTypeError, section="float-needs-a-value"):
    """Python code needs the concrete value of a traced array.

    Args:
        tracer: the traced array, or the message itself.
        context: what needs the value, for the message.
    """

    def __init__(self, tracer: object, context: str = ""):
        super().__init__(_traced_message(tracer, context or "Python code needs its value"))


class TracerBoolConversionError(
    ConcretizationTypeError, section="python-needs-true-or-false-here-but-the-value-is-not-known"
):
    """A traced value was used as a Python bool, as in `if` and `while`. `tracer`: the value, or the message."""

    def __init__(self, tracer: object):
        super().__init__(tracer, "it is used as a Python bool; use `lax.cond` or `jnp.where`")


class TracerIntegerConversionError(ConcretizationTypeError, section="float-needs-a-value"):
    """A traced value was used as a Python int, as in `range`. `tracer`: the value, or the message."""

    def __init__(self, tracer: object):
        super().__init__(tracer, "it is used as a Python int")


class TracerArrayConversionError(ConcretizationTypeError, section="numpy-needs-the-elements-of-an-array"):
    """A traced value was converted to a numpy array. `tracer`: the value, or the message."""

    def __init__(self, tracer: object):
        super().__init__(tracer, "it is converted to a numpy array")


class NonConcreteBooleanIndexError(JAXIndexError, section="the-shape-of-the-result-is-unknown"):
    """A traced boolean array was used as an index: the size of the result would depend on its values.

    `tracer`: the array, or the message.
    """

    def __init__(self, tracer: object):
        super().__init__(_traced_message(tracer, "it is used as a boolean index; use `jnp.where`"))


def _traced_message(tracer: object, problem: str) -> str:
    """Return the message of an error that a traced value causes; a message instead of the value is returned as is."""
    return tracer if isinstance(tracer, str) else f"{tracer!r} is traced, so its value is not known, but {problem}"


class UnexpectedTracerError(JAXTypeError, RuntimeError, section="a-traced-value-is-used-after-its-function-returned"):
    """A traced value was used after its trace had ended (a leaked tracer)."""

    def __init__(self, msg: str):
        super().__init__(msg)


class KeyReuseError(_DocumentedError, RuntimeError, section="a-prng-key-is-used-but-it-was-used-already"):
    """A PRNG key was used twice, and the setting `debug_key_reuse` is on."""

    def __init__(self, message: str):
        super().__init__(message)


class ProgramError(_DocumentedError, ValueError, section="a-program-violates-an-invariant"):
    """A program, its text, or a module of StableHLO is not valid: an internal error unless the text was edited."""


class UnboundAxisError(_DocumentedError, NameError, section="unbound-axis-name"):
    """A collective names an axis that no enclosing vmap, shard_map or pmap binds."""

    def __init__(self, message: str, axis: object):
        super().__init__(message)
        self.axis = axis

    def __reduce__(self) -> tuple[object, ...]:
        return UnboundAxisError, (str(self), self.axis)


class BroadcastError(_DocumentedError, TypeError, ValueError, section="shapes-do-not-broadcast"):
    """The shapes of operands do not broadcast.

    JAX raises a TypeError or a ValueError, depending on the ranks of the operands; this is both.
    """


class MissingRuleError(_DocumentedError, NotImplementedError, section="an-op-has-no-rule"):
    """An op lacks a rule that a transformation needs; the message names the method to define."""


class UnsupportedError(_DocumentedError, NotImplementedError, section="is-not-supported-yet"):
    """A name of JAX exists for imports only, an op has no lowering for its devices, or a module has an unknown op.

    The message says what to use instead.
    """


class TorchModuleError(_DocumentedError, RuntimeError, section="pytorch-modules"):
    """A PyTorch module cannot run as a function of its parameters, or its state does not fit.

    Examples are an op that torchax lacks, control flow on the values of tensors, and a missing parameter. The message
    has the path of the module and the line of the model.
    """


class HardwareError(_DocumentedError, ValueError, section="unknown-hardware"):
    """The name of hardware is unknown, or a table of chips cannot be read."""


class ProfileError(_DocumentedError, ValueError, section="a-profile-cannot-be-used"):
    """A file is no profile of XLA, or the profile has no run of the program."""


class StrategyError(_DocumentedError, ValueError, section="a-strategy-does-not-fit"):
    """A strategy or a building block does not fit the parameters, operands or mesh.

    Examples are an unknown path or mesh axis, and a size that is not divisible.
    """


class DataError(_DocumentedError, ValueError, section="data"):
    """A data source, or a batch of it, is not valid, or it does not fit the devices.

    Examples are ragged leaves, a batch size that is not divisible, and a file of tokens with another dtype.
    """


class EndOfDataError(DataError, section="the-source-ended-too-early"):
    """A data source ended before the number of batches that was asked for.

    Attributes:
        delivered: how many batches it had.
        expected: how many were asked for.
    """

    def __init__(self, delivered: int, expected: int):
        super().__init__(
            f"the source ended after {delivered} of {expected} batches: pass more data, epochs=None to go through it "
            "again, or fewer steps"
        )
        self.delivered, self.expected = delivered, expected

    def __reduce__(self) -> tuple[object, ...]:
        return EndOfDataError, (self.delivered, self.expected)


class DataStateMismatch(DataError, section="the-saved-state-belongs-to-other-data"):
    """The saved state of a data iterator belongs to another dataset, seed or batch size. `differences` lists them."""

    def __init__(self, message: str, differences: tuple[str, ...]):
        super().__init__(message)
        self.differences = differences

    def __reduce__(self) -> tuple[object, ...]:
        return DataStateMismatch, (str(self), self.differences)


class CheckpointError(_DocumentedError, RuntimeError, section="checkpoints"):
    """A checkpoint cannot be written or read."""


class CheckpointExists(CheckpointError, FileExistsError, section="there-is-a-checkpoint-already"):
    """There is a checkpoint already where one is to be saved."""


class CheckpointNotFound(CheckpointError, FileNotFoundError, section="there-is-no-checkpoint"):
    """There is no checkpoint where one is to be read: it was never saved, or it was deleted."""


class CorruptCheckpoint(CheckpointError, section="a-checkpoint-is-corrupt"):
    """A checkpoint was changed, cut or partly deleted after it was written."""


class CheckpointMismatch(CheckpointError, ValueError, section="a-checkpoint-differs-from-the-program"):
    """A checkpoint does not hold what the program asks for. `differences` lists them all."""

    def __init__(self, message: str, differences: tuple[str, ...]):
        super().__init__(message)
        self.differences = differences

    def __reduce__(self) -> tuple[object, ...]:
        return CheckpointMismatch, (str(self), self.differences)


set_public_names(__name__, __all__)
