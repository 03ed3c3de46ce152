"""Comparison of alternatives: ties, the runner-up, and the causes of a difference in time."""

from collections.abc import Sequence

from shardwise.explain.text import human_bytes, human_seconds
from shardwise.layout_search.evaluate import Alternative

RECOMPUTED = {
    "none": "",
    "products": "bodies of scans recomputed but for products with weights",
    "all": "bodies of scans recomputed",
}
_CAUSES = 2  # the most causes to state
_CHANGES = 2  # the most changed layouts to state
_SMALL = 0.2  # a cause is stated if it is at least this fraction of the difference


def tied(best: Alternative, others: Sequence[Alternative], error: float) -> tuple[Alternative, ...]:
    """Return the alternatives that fit, and are slower than the best one by less than a relative error."""
    return tuple(other for other in others if other.fits and other.seconds <= (1 + error) * best.seconds)


def runner_up(alternatives: Sequence[Alternative]) -> Alternative | None:
    """Return the best alternative that fits and has another mesh, family or recomputation than the first; else None.

    Two refinements of a strategy are of one family.
    """
    best = alternatives[0]
    return next((other for other in alternatives[1:] if other.fits and _differs(best, other)), None)


def _differs(best: Alternative, other: Alternative) -> bool:
    return (best.mesh, best.variant, best.name) != (other.mesh, other.variant, other.name)


def changes_text(alternative: Alternative) -> str:
    """Return the layouts that a refined alternative has instead of those of its strategy; empty for others."""
    more = len(alternative.changes) - _CHANGES
    texts = [str(change) for change in alternative.changes[:_CHANGES]]
    return ", ".join([*texts, f"{more} more"] if more > 0 else texts)


def strategy_text(alternative: Alternative) -> str:
    """Return the mesh, the strategy, the microbatches of a pipeline, and the recomputation of an alternative."""
    mesh = " × ".join(f"{axis}={size}" for axis, size in alternative.mesh.shape.items())
    microbatches, recomputed = alternative.variant.microbatches, RECOMPUTED[alternative.variant.remat]
    attention = f"{alternative.variant.attention} attention" if alternative.variant.attention else ""
    changes = f" ({changes_text(alternative)})" if alternative.changes else ""
    parts = [
        mesh,
        alternative.strategy + changes,
        attention,
        f"{microbatches} microbatches" if microbatches else "",
        recomputed,
    ]
    return ", ".join(filter(None, parts))


def difference_text(best: Alternative, other: Alternative, chip: str, error: float) -> str:
    """Return why an alternative is not the best one, as a line."""
    if not other.fits:
        return f"{strategy_text(other)}: {human_seconds(other.seconds)}, does not fit: {human_bytes(other.peak_bytes)}"
    slower = other.seconds / best.seconds - 1 if best.seconds else 0.0
    causes = _causes_text(best, other)
    tie = f" (a tie: predictions for {chip} have an error of {100 * error:.0f}%)" if slower < error else ""
    # An estimate may be faster: it ranks behind plans that it beats by less than its own error.
    change = f"{100 * slower:.0f}% slower" if slower >= 0 else f"estimated as {-100 * slower:.0f}% faster"
    return f"{strategy_text(other)}: {change}{tie}" + (f": {causes}" if causes else "")


def _causes_text(best: Alternative, other: Alternative) -> str:
    """Return the parts of the time of which one alternative has more than the other, the largest first."""
    before, after = dict(best.parts), dict(other.parts)
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    more = sorted((name for name in changes if changes[name] > 0), key=lambda name: -changes[name])
    less = min(changes, key=lambda name: changes[name], default="")
    large = _SMALL * sum(changes[name] for name in more)
    texts = [f"{human_seconds(changes[name])} more {name}" for name in more[:_CAUSES] if changes[name] >= large]
    if texts and changes[less] < -large:
        texts.append(f"although {human_seconds(-changes[less])} less {less}")
    return ", ".join(texts)
