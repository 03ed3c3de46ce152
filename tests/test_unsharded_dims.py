"""docs/unsharded-dims.md lists exactly the ops that need an unsharded dim."""

import re
from pathlib import Path

from shardwise.compiler.ir.op import factor_rule
from tests.compiler.ops.cases import op_cases
from tests.compiler.ops.laws import has_rule

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "unsharded-dims.md"
EXCHANGES_ROWS = {"sort", "fft"}  # their `localize` gathers complete rows


def test_the_document_lists_all_ops_that_need_an_unsharded_dim():
    expected = set(EXCHANGES_ROWS)
    for case in op_cases():
        if has_rule(case):
            rule = factor_rule(case.op, case.types)
            if any(rule.sizes[factor] > 1 for factor in rule.need_replication):
                expected.add(case.op.name)
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == expected
