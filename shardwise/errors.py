"""The exceptions that users meet. Names that JAX also has mean the same here."""


class ShardingError(ValueError):
    """A layout that cannot be: an unknown axis, an axis used twice, a spec that does not fit its array."""


class DeviceMismatchError(ValueError):
    """Arrays that live on different devices met in one computation."""


class ConcretizationTypeError(TypeError):
    """Python asked for the value of an array that is only known when the compiled program runs."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used where Python needs True or False, as in `if` and `while`."""


class TracerIntegerConversionError(ConcretizationTypeError):
    """A traced value was used where Python needs an integer, as in `range` or an index into a list."""


class TracerArrayConversionError(ConcretizationTypeError):
    """A traced value was handed to numpy."""


class UnexpectedTracerError(RuntimeError):
    """A traced value was used after the function that made it had returned."""


class ProgramError(ValueError):
    """A program, or its text, breaks a rule of its stage: an internal error unless the text was written by hand."""


class MissingRuleError(NotImplementedError):
    """An op lacks a rule that a transformation needs; the message names the method to write."""
