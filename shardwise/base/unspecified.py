"""The default of parameters for which None is a value."""

from typing import Any, final


@final
class Unspecified:
    """The class of `UNSPECIFIED`, the default of a parameter that the caller did not pass."""

    def __repr__(self) -> str:
        return "<unspecified>"


UNSPECIFIED: Any = Unspecified()
