"""The document lists every op that needs a dim whole, and no other."""

import re
from pathlib import Path

from shardwise.compiler.ir.op import factor_rule
from tests.compiler.ops.cases import op_cases
from tests.compiler.ops.laws import has_rule

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "whole-dims.md"
EXCHANGES_WHOLE_ROWS = {"sort", "fft"}  # their own rule reaches across the cuts, and brings all of a row together


def test_the_list_is_whole():
    needing = set(EXCHANGES_WHOLE_ROWS)
    for case in op_cases():
        if has_rule(case):
            rule = factor_rule(case.op, case.types)
            if any(rule.sizes[factor] > 1 for factor in rule.need_replication):
                needing.add(case.op.name)
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == needing
