"""Every op on operands with random Explicit shardings: types, values, wire bytes and cotangents.

`samples.py` says what is checked; `python -m tests.fuzz.explicit` runs more.
"""

from random import Random

import numpy as np
import pytest

from tests.explicit.samples import check_sample, random_sample
from tests.fuzz.explicit import cases_by_op

SAMPLES = 4  # per op, of which the first runs by default
OPS = sorted(cases_by_op())


@pytest.mark.table(default=len(OPS))
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("number", range(SAMPLES))
def test_an_op_with_explicit_operands_obeys_the_rule(name, number):
    rng = Random(f"{name} {number}")
    sample = random_sample(rng, rng.choice(cases_by_op()[name]))
    try:
        with np.errstate(all="ignore"):
            check_sample(sample)
    except Exception as error:
        raise AssertionError(str(sample)) from error


def test_samples_are_accepted_and_refused_for_every_reason():
    outcomes = set()
    for seed in range(3000):
        rng = Random(seed)
        sample = random_sample(rng, rng.choice(cases_by_op()[rng.choice(OPS)]))
        outcomes.add(sample.expected if isinstance(sample.expected, str) else "accepted")
    assert outcomes == {"accepted", "conflict", "ambiguous", "twice", "contiguous", "unsharded", "not linear"}
