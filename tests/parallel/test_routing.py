"""Top-k routing against loops over tokens in numpy."""

import numpy as np
import pytest

from shardwise.parallel.routing import route, starts

TOKENS, EXPERTS, K = 7, 5, 2


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("scores", "has_bias"), [("softmax", False), ("sigmoid", True)])
def test_assignments_equal_those_of_a_loop(normalize, scores, has_bias):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(TOKENS, EXPERTS)).astype(np.float32)
    bias = rng.normal(size=EXPERTS).astype(np.float32) if has_bias else np.zeros(EXPERTS, np.float32)
    found = route(logits, K, normalize, scores, bias if has_bias else None)
    score = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) if scores == "softmax" else 1 / (1 + np.exp(-logits))
    choices = np.argsort(-(score + bias), -1)[:, :K]
    seen = [0] * EXPERTS
    for assignment in range(K * TOKENS):  # all first choices come first
        choice, token = divmod(assignment, TOKENS)
        expert = choices[token, choice]
        weight = score[token, expert] / (score[token, choices[token]].sum() if normalize else 1)
        assert (found.expert[assignment], found.rank[assignment]) == (expert, seen[expert])
        np.testing.assert_allclose(found.weight[choice, token], weight, rtol=1e-5)
        seen[expert] += 1
    assert found.counts.tolist() == seen
    assert np.asarray(found.expert)[np.asarray(found.order)].tolist() == sorted(choices.reshape(-1))
    np.testing.assert_allclose(found.probability, (score / score.sum(-1, keepdims=True)).sum(0), rtol=1e-5)
    np.testing.assert_allclose(found.log_sum, (np.log(np.exp(logits).sum(-1)) ** 2).sum(), rtol=1e-5)


def test_starts_of_consecutive_parts():
    assert starts(np.array([3, 0, 2, 4])).tolist() == [0, 3, 3, 5]
