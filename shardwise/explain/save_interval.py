"""best_interval: how often to save a state, if failures are exponential."""

import math

_ITERATIONS = 60  # of a bisection: the error is 2⁻⁶⁰ of the mean time between failures


def best_interval(rate: float, save_seconds: float, least: float) -> float:
    """Return the seconds of training between saves that maximize the goodput.

    A failure loses the training since the last save. With `rate` failures per second, a cycle of `t` seconds of
    training and a save of `s` seconds takes `(exp(rate (t + s)) - 1) / rate` on average, besides the time of recovery,
    which does not depend on `t`. The ratio of `t` to this time is largest where `exp(-rate (t + s)) = 1 - rate t`
    (Daly 2006); for short saves, `t` is about `sqrt(2 s / rate)` (Young 1974).

    Args:
        rate: failures per second.
        save_seconds: the time for which a save stops training.
        least: the shortest interval that is possible.

    Returns:
        The interval; infinite if there are no failures.
    """
    if not rate:
        return math.inf
    stop, low, high = rate * save_seconds, 0.0, 1.0  # in units of the mean time between failures
    for _ in range(_ITERATIONS):
        middle = (low + high) / 2
        # expm1 keeps the digits of short saves: exp(-(t + s)) - 1 + t
        low, high = (middle, high) if math.expm1(-(middle + stop)) + middle < 0 else (low, middle)
    return max(least, low / rate)
