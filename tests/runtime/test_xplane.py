"""The HLO modules of a profile: as XLA's own text of them, and messages that are not complete."""

import pytest

from shardwise.base._jaxlib import hlo_module_text
from shardwise.runtime.xplane import module_protos
from tests.explain.test_device_trace import LOOP
from tests.explain.xplane_writer import metadata_plane, plane, profile


def test_modules_are_found_by_name_and_id():
    content = profile(plane("/device:GPU:0", {}), metadata_plane({"scanned(7)": LOOP, "other(8)": LOOP}))
    protos = module_protos(content)
    assert list(protos) == ["scanned(7)", "other(8)"]
    text = hlo_module_text(protos["scanned(7)"])
    assert text.startswith("HloModule scanned, is_scheduled=true") and "%square.1 = f32[4]{0} multiply" in text
    assert module_protos(b"") == {}


@pytest.mark.parametrize("content", [b"\x0a\x05abc", b"\xff", b"\xff" * 12, b"\x0b", b"\x0d\x00"])
def test_malformed_messages_are_errors(content):
    with pytest.raises(ValueError, match=r"a field of|an integer without an end"):
        module_protos(content)
