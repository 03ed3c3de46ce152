"""Sharding rules that users register for primitives, FFI calls and Pallas kernels, which the planner cannot read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

from shardwise.api.jaxprs.jaxpr_forms import find_primitive
from shardwise.base.caches import clear_all
from shardwise.errors import UnsupportedError
from shardwise.experimental.sharding_rule import CompoundFactor, SdyShardingRule, parse_rule
from shardwise.inside_jax import _jax
from shardwise.inside_jax.primitives import PRIMITIVES

_OPTIONS = ("reduction_factors", "need_replication_factors", "permutation_factors")


@final
@dataclass(frozen=True)
class RegisteredRule:
    """A rule that a user registered.

    Attributes:
        name: the name of the primitive, the FFI target or the Pallas kernel, for messages.
        rule: the rule.
        lower_fn: the function of the shards of one device; None to apply the primitive to them.
    """

    name: str
    rule: SdyShardingRule
    lower_fn: Callable[..., Any] | None


_rules: dict[Any, RegisteredRule] = {}  # by a name or a primitive


def register_sharding_rule(
    op: object,
    sharding_rule: object,
    lower_fn: Callable[..., Any] | None = None,
    *,
    reduction_factors: tuple[str, ...] = (),
    need_replication_factors: tuple[str, ...] = (),
    **factor_sizes: int,
) -> None:
    """Tell the planner how an op that it cannot read is partitioned: each device then runs it on its shards.

    Ops with a rule are an FFI call, a Pallas kernel, or a primitive of JAX or of another library that Shardwise has no
    rule for. Without one, their operands are replicated, with a warning. The op must be correct on shards along every
    factor that passes through. Shards of a dim that the devices do not divide are padded with arbitrary elements.
    Functions that are compiled already keep their plans.

    Args:
        op: the name of an FFI target, of a Pallas kernel or of a primitive; or the primitive.
        sharding_rule: an einsum-like string such as `"... m k, k n -> ... m n"`, as in
            `jax.experimental.custom_partitioning`, or an SdyShardingRule of JAX or of Shardwise.
        lower_fn: a function of the operands' shards that returns the shards of the results, in JAX. It runs instead of
            the op if its operands are sharded. A Pallas kernel needs one, because its grid and its block shapes are
            parameters for unsharded arrays. By default, the primitive is applied to the shards, with equal parameters;
            for an FFI call, the shapes of the results are those of shards.
        reduction_factors: the factors along which the results of shards are partial sums.
        need_replication_factors: the factors that are never sharded.
        **factor_sizes: the sizes of the factors that appear in compound dims only.

    Raises:
        TypeError: if `op` or `sharding_rule` is of another type.
        ValueError: if the planner has a rule for the primitive, if the string is not a valid rule, or if options are
            passed with a rule that is not a string.

    Example:
        >>> inside_jax.register_sharding_rule("my_ffi_softmax", "... i -> ... i", need_replication_factors=("i",))
    """
    if not isinstance(op, (str, _jax.Primitive)):
        raise TypeError(f"register_sharding_rule: the op must be a name or a primitive of JAX, not {op!r}")
    name = op if isinstance(op, str) else op.name
    if name in PRIMITIVES or find_primitive(name) is not None or name == "custom_partitioning":
        raise ValueError(f"register_sharding_rule: the planner has a rule for {name!r} already")
    options = {
        "reduction_factors": reduction_factors,
        "need_replication_factors": need_replication_factors,
        **factor_sizes,
    }
    if isinstance(sharding_rule, str):
        rule = parse_rule(sharding_rule, **options)
    elif passed := [option for option, value in options.items() if value != ()]:
        raise ValueError(
            f"register_sharding_rule of {name!r}: {passed[0]} is an option of a sharding_rule that is a string; put it "
            "into the SdyShardingRule"
        )
    else:
        rule = sdy_rule(sharding_rule)
    _rules[op] = RegisteredRule(name, rule, lower_fn)
    clear_all()  # plans without the rule


def sdy_rule(rule: object) -> SdyShardingRule:
    """Return an SdyShardingRule of JAX or of Shardwise as Shardwise's."""
    if isinstance(rule, SdyShardingRule):
        return rule
    if not isinstance(rule, _jax.SdyShardingRule):
        raise TypeError(f"sharding_rule must be a string or an SdyShardingRule, not {rule!r}")
    operands, results = (
        [[dim if isinstance(dim, str) else CompoundFactor(*dim) for dim in dims] for dims in mappings]
        for mappings in (rule.operand_mappings, rule.result_mappings)
    )
    options = {option: getattr(rule, option) for option in _OPTIONS}
    return SdyShardingRule(operands, results, **options, **rule.factor_sizes)


def registered_rule(eqn: _jax.JaxprEqn) -> RegisteredRule | None:
    """Return the rule of the op of an equation; None if there is none."""
    registered = next((_rules[key] for key in _keys(eqn) if key in _rules), None)
    if registered is not None and registered.lower_fn is None and eqn.primitive.name == "pallas_call":
        raise UnsupportedError(
            f"the Pallas kernel {registered.name!r} has a sharding rule, but its grid and its block shapes are for "
            "unsharded arrays, so Shardwise cannot apply it to shards. Pass `lower_fn` to register_sharding_rule: a "
            "function of the shards that makes the `pallas_call` for their shapes."
        )
    return registered


def _keys(eqn: _jax.JaxprEqn) -> Iterator[Any]:
    """Yield what a user can register the op of an equation by, the most specific first."""
    if eqn.primitive.name == "ffi_call":
        yield eqn.params["target_name"]
    if eqn.primitive.name == "pallas_call":
        yield eqn.params["jaxpr"].debug_info.func_name
    yield eqn.primitive
    yield eqn.primitive.name
