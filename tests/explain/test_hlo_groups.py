"""Groups of collectives in every form in which HLO writes them."""

import pytest

from shardwise.explain.hlo_groups import device_groups, device_pairs
from shardwise.runtime.hlo_text import HloInstruction


def instruction(groups):
    return HloInstruction(
        f'  %c = f32[8]{{0}} all-gather(%p), replica_groups={groups}, dimensions={{0}}, metadata={{op_name="a/b"}}'
    )


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", [(0, 1), (2, 3)]),
        ("{{0,1,2},{3}}", [(0, 1, 2), (3,)]),
        ("[2,4]<=[8]", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("[4,2]<=[2,4]T(1,0)", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("[1,8]<=[2,2,2]T(2,0,1)", [(0, 2, 4, 6, 1, 3, 5, 7)]),
        ("mesh['x'=4,'y'=2] {'x'}", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("mesh['x'=4,'y'=2] {'x','y'}", [(0, 1, 2, 3, 4, 5, 6, 7)]),
        ("mesh['x'=4,'y'=2] {'x':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)]),  # the major half of an axis
        ("mesh['x'=4,'y'=2] {'x':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),  # the minor half
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("{}", []),
    ],
)
def test_groups(text, groups):
    assert device_groups(instruction(text)) == groups


@pytest.mark.parametrize("text", ["[2,2,2]<=[8]", "somehow(8)"])
def test_an_unknown_form_is_an_error(text):
    with pytest.raises(ValueError, match="replica groups in an unknown form"):
        device_groups(instruction(text))


def test_pairs_of_a_permute():
    line = "  %c = f32[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0},{2,2}}"
    assert device_pairs(HloInstruction(line)) == [(0, 1), (1, 0)]
