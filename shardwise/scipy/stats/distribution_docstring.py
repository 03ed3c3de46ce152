"""Docstrings of the functions of univariate distributions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """A function that distributions have, in the words of the docstrings. `{}` stands for the name of its operand."""

    title: str
    operand: str
    returns: str
    outside: str = ""  # the result outside of the support, if it is worth saying


_POINTS = "the points at which to evaluate the function."
KINDS = {
    "cdf": Kind("cumulative distribution function", _POINTS, "The probability of a value at or below each `{}`"),
    "logcdf": Kind(
        "log cumulative distribution function", _POINTS, "The log probability of a value at or below each `{}`"
    ),
    "sf": Kind("survival function (1 - `cdf`)", _POINTS, "The probability of a value above each `{}`"),
    "logsf": Kind("log survival function", _POINTS, "The log probability of a value above each `{}`"),
    "pdf": Kind(
        "probability density function", "the points at which to evaluate the density.", "The density at each `{}`", "0"
    ),
    "logpdf": Kind(
        "log probability density function",
        "the points at which to evaluate the log density.",
        "The log density at each `{}`",
        "-inf",
    ),
    "pmf": Kind("probability mass function", "the outcomes.", "The probability of each `{}`", "0"),
    "logpmf": Kind("log probability mass function", "the outcomes.", "The log probability of each `{}`", "-inf"),
    "ppf": Kind(
        "quantile function (the inverse of `cdf`)",
        "the cumulative probabilities, from 0 to 1.",
        "The value below which the probability is `{0}`; NaN where `{0}` is not between 0 and 1",
    ),
    "isf": Kind(
        "inverse survival function",
        "the tail probabilities, from 0 to 1.",
        "The value above which the probability is `{0}`; NaN where `{0}` is not between 0 and 1",
    ),
}


def distribution_docstring(
    name: str,
    label: str,
    names: Sequence[str],
    *,
    title: str,
    parameters: Mapping[str, str],
    outside: str,
    invalid: str,
    accepts_complex: bool,
    example: tuple[str, str],
    note: str,
    returns: str,
) -> str:
    """Return the docstring of the function `name` with the parameters `names` of the distribution `title`.

    `label` is the name with the distribution: "norm.cdf". `Distribution` describes the other arguments.
    """
    kind = KINDS[name]
    exceptions = [f"{kind.outside} {outside}"] if kind.outside and outside else []
    exceptions += [f"NaN {invalid}"] if invalid else []
    result = kind.returns.format(names[0]) + ("; " if exceptions else "") + ", ".join(exceptions)
    meanings = {key: meaning for key, meaning in parameters.items() if key.partition(",")[0] in names}
    call, output = example
    sections = {
        "Args": [f"{key}: {meaning}" for key, meaning in {names[0]: kind.operand, **meanings}.items()],
        "Returns": [returns or f"{result}."],
        "Raises": [
            f"TypeError: if an argument is not an array or a number{'' if accepts_complex else ' or is complex'}, "
            "or if the shapes do not broadcast."
        ],
        "Example": [f'>>> f"{{jax.scipy.stats.{label}({call}):.4f}}"', repr(output)],
    }
    blocks = [f"Compute the {kind.title} of {title}.", *([note] if note else [])]
    blocks += [
        f"{section}:\n" + "".join(f"    {entry}\n" for entry in entries) for section, entries in sections.items()
    ]
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"
