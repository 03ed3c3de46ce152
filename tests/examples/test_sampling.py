"""Sampling with a sharded key-value cache."""

import gpt
import numpy as np
import pytest
import sampling

import shardwise as sw


@pytest.fixture
def prompts():
    return np.stack([sampling.encode(prompt) for prompt in sampling.PROMPTS])


def test_logits_with_the_cache_equal_those_without(mesh, prompts):
    params, cache = gpt.init_state(mesh)["params"], sampling.init_cache(len(prompts), mesh)
    expected = np.asarray(sw.jit(gpt.predict)(params, prompts))
    key = cache[0]["key"]
    assert key.addressable_shards[0].data.shape == (2, gpt.LENGTH, gpt.HEADS // 2, sampling.HEAD_DIM)
    logits, cache = sampling.prefill(params, cache, prompts[:, :8])
    assert key.is_deleted() and cache[0]["key"].sharding == key.sharding
    for position in range(8, prompts.shape[1]):
        np.testing.assert_allclose(logits, expected[:, position - 1], rtol=1e-4, atol=1e-5)
        logits, cache = sampling.decode(params, cache, prompts[:, position], position)
    plan = sampling.decode.lower(params, cache, prompts[:, 0], 1).plan
    assert set(plan.counts()) == {"all_reduce"}  # the cache stays where it is


def test_a_cache_on_one_device_has_arrays_of_its_own():
    cache = sampling.init_cache(8, sw.make_mesh((1, 1), ("data", "model")))
    pointers = [x.addressable_shards[0].data.unsafe_buffer_pointer() for x in sw.tree.leaves(cache)]
    assert len(set(pointers)) == len(pointers) == 2 * gpt.LAYERS


@pytest.mark.slow
def test_greedy_decoding_equals_the_forward_pass_on_every_mesh(tmp_path, capsys):
    tokens = sampling.main(["--folder", str(tmp_path), "--steps", "5"])  # trains first
    assert tokens.shape == (len(sampling.PROMPTS), gpt.LENGTH - len(sampling.PROMPTS[0]))
    printed = capsys.readouterr().out
    assert "greedy decoding with the cache equals the forward pass without it" in printed
    assert (tmp_path / "decode.html").exists()
    np.testing.assert_array_equal(sampling.main(["--folder", str(tmp_path), "--devices", "1"]), tokens)
    assert "step" not in capsys.readouterr().out.partition("greedy")[0]  # the checkpoint is used
