"""The exceptions that users meet. Names that JAX also has mean the same here."""

from shardwise._jaxlib import RuntimeFailure as JaxRuntimeError


class OutOfMemoryError(JaxRuntimeError):  # type: ignore[misc]
    """A device has too little memory for what a program, or an array, needs there."""


class TransferError(JaxRuntimeError):  # type: ignore[misc]
    """An array moved between host and devices where a transfer guard forbids it."""


class JAXTypeError(TypeError):
    """A value was used where its kind cannot be."""


class JAXIndexError(IndexError):
    """An index cannot be used."""


class ShardingError(ValueError):
    """A layout that cannot be: an unknown axis, an axis used twice, a spec that does not fit its array."""


class DeviceMismatchError(ValueError):
    """Arrays that live on different devices met in one computation."""


class TypePromotionError(TypeError, ValueError):
    """Dtypes met that have no common one: one of them must be converted."""


class ConcretizationTypeError(JAXTypeError):
    """Python asked for the value of an array that is only known when the compiled program runs."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used where Python needs True or False, as in `if` and `while`."""


class TracerIntegerConversionError(ConcretizationTypeError):
    """A traced value was used where Python needs an integer, as in `range` or an index into a list."""


class TracerArrayConversionError(ConcretizationTypeError):
    """A traced value was handed to numpy."""


class NonConcreteBooleanIndexError(JAXIndexError):
    """A traced array of booleans was used as an index: how many elements it takes is not known."""


class UnexpectedTracerError(JAXTypeError, RuntimeError):
    """A traced value was used after the function that made it had returned."""


class ProgramError(ValueError):
    """A program, or its text, breaks a rule of its stage: an internal error unless the text was written by hand."""


class UnboundAxisError(NameError):
    """A collective names an axis that nothing around it has: no vmap, shard_map or pmap."""

    def __init__(self, message: str, axis: object):
        super().__init__(message)
        self.axis = axis


class MissingRuleError(NotImplementedError):
    """An op lacks a rule that a transformation needs; the message names the method to write."""
