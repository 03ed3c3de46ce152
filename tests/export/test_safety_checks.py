"""Safety checks of exported modules."""

import pytest

from shardwise.base._jaxlib import parse_module
from shardwise.errors import UnsupportedError
from shardwise.export.safety_checks import DisabledSafetyCheck, check_custom_calls

MODULE = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.custom_call @TARGET(%x) : (tensor<2xf32>) -> tensor<2xf32> loc("train.py":3:0)
  return %0 : tensor<2xf32>
}"""


def check(target, *disabled):
    check_custom_calls(parse_module(MODULE.replace("TARGET", target)), "f", disabled)


@pytest.mark.parametrize("target", ["lapack_spotrf_ffi", "cusolver_geqrf_ffi", "Sharding", "annotate_device_placement"])
def test_stable_targets(target):
    check(target)


@pytest.mark.parametrize("target", ["my_kernel", "lapack_spotrf_ffi_", "__cudnn$fmha"])
def test_other_targets(target):
    with pytest.raises(UnsupportedError, match=r"`f` has a custom call of '.*' at .*train\.py.*, which is not known"):
        check(target, DisabledSafetyCheck.platform(), DisabledSafetyCheck.custom_call("other"))
    check(target, DisabledSafetyCheck.custom_call(target))
    check(target, DisabledSafetyCheck.custom_call("ALL"))


def test_checks_are_compared_by_value():
    assert DisabledSafetyCheck.platform() == DisabledSafetyCheck.platform() != DisabledSafetyCheck.custom_call("f")
    assert DisabledSafetyCheck.custom_call("f").is_custom_call() == "f"
    assert DisabledSafetyCheck.platform().is_custom_call() is None
