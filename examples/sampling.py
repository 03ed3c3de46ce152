"""Sample text from the GPT of `gpt.py` with a sharded key-value cache.

    python examples/sampling.py                        restores the checkpoint of gpt.py, or trains for a few steps
    python examples/sampling.py --mesh data=1,model=4  the same text on another mesh

The cache is sharded like the computation that fills it: its rows over `data`, its heads over `model`. `prefill`
computes the keys and values of all characters of the prompts at once. `decode` adds one character, and donates the
cache, so that it is updated in place. Greedy decoding is compared with the forward pass of the whole sequence, without
a cache.
"""

import time
from functools import partial

import gpt
import numpy as np
from characters import decode as decode_text
from characters import encode
from training_run import Run, count_compiles

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints, lax, nn, random
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

PROMPTS = (
    "The keeper ",
    "The ships t",
    "By day the ",
    "On each of ",
    "No lamp alo",
    "A captain w",
    "Beside the ",
    "The river c",
)
HEAD_DIM = gpt.WIDTH // gpt.HEADS
TEMPERATURE = 0.5


def init_cache(rows, mesh):
    """Return keys and values of every layer for all positions, sharded over rows and heads."""
    sharding = NamedSharding(mesh, P("data", None, "model"))

    def zeros():  # an array for each name: a donated one must not be passed twice
        return jnp.zeros((rows, gpt.LENGTH, gpt.HEADS, HEAD_DIM), device=sharding)

    return [{"key": zeros(), "value": zeros()} for _ in range(gpt.LAYERS)]


def attend(weights, x, cache, position):
    """Add the keys and values of the tokens from `position` on to the cache; return attention to all before them."""
    query, key, value = (
        (x @ weights[name]).reshape(*x.shape[:2], gpt.HEADS, HEAD_DIM) for name in ("query", "key", "value")
    )
    cache = {
        "key": lax.dynamic_update_slice_in_dim(cache["key"], key, position, axis=1),
        "value": lax.dynamic_update_slice_in_dim(cache["value"], value, position, axis=1),
    }
    mask = jnp.arange(gpt.LENGTH) <= position + jnp.arange(x.shape[1])[:, None]
    attended = nn.dot_product_attention(query, cache["key"], cache["value"], mask=mask[None, None])
    return attended.reshape(x.shape) @ weights["out"], cache


def forward(params, cache, tokens, position):
    """Return the logits after the last of these tokens, which begin at `position`, and the new cache."""
    x = params["embed"][tokens] + lax.dynamic_slice_in_dim(params["positions"], position, tokens.shape[1])
    new_cache = []
    for weights, layer in zip(params["layers"], cache, strict=True):
        attended, new_layer = attend(weights, gpt.rms_norm(x, weights["norm1"]), layer, position)
        x = x + attended
        x = x + gpt.mlp(weights, gpt.rms_norm(x, weights["norm2"]))
        new_cache.append(new_layer)
    return gpt.rms_norm(x[:, -1], params["norm"]) @ params["embed"].T, new_cache


@partial(sw.jit, donate_argnums=1)
def prefill(params, cache, tokens):
    return forward(params, cache, tokens, 0)


@partial(sw.jit, donate_argnums=1)
def decode(params, cache, tokens, position):
    return forward(params, cache, tokens[:, None], position)


def greedy(logits, number):
    return logits.argmax(-1).astype(jnp.int32)


def sampled(logits, number):
    return random.categorical(random.fold_in(random.key(0), number), logits / TEMPERATURE).astype(jnp.int32)


def generate(params, prompts, choose, mesh):
    """Return the tokens that follow the prompts, up to the length of the model; `choose` selects them by logits."""
    rows, length = prompts.shape
    prompts = sw.device_put(prompts, NamedSharding(mesh, P("data")))
    logits, cache = prefill(params, init_cache(rows, mesh), prompts)
    tokens = [choose(logits, 0)]
    for position in range(length, gpt.LENGTH - 1):
        logits, cache = decode(params, cache, tokens[-1], position)
        tokens.append(choose(logits, position))
    return np.stack(tokens, axis=1)


def generate_uncached(params, prompts):
    """Return what `generate` returns with `greedy`, by the forward pass of all tokens for every new one."""
    predict = sw.jit(lambda params, tokens: gpt.predict(params, tokens).argmax(-1))
    tokens = np.zeros((len(prompts), gpt.LENGTH), np.int32)
    tokens[:, : prompts.shape[1]] = prompts
    for position in range(prompts.shape[1], gpt.LENGTH):
        tokens[:, position] = np.asarray(predict(params, tokens))[:, position - 1]
    return tokens[:, prompts.shape[1] :]


def load_params(run):
    """Return the parameters of the latest checkpoint in the folder, which `gpt.main` creates if there is none."""
    manager = checkpoints.Manager(run.folder / "checkpoints", read_only=True)
    like = {"params": gpt.init_state(run.mesh)["params"]}
    if manager.latest() is None:
        sizes = ",".join(f"{axis}={size}" for axis, size in run.mesh.shape.items())
        gpt.main(["--mesh", sizes, "--folder", str(run.folder), "--steps", str(run.options.steps)])
    return manager.restore(like, allow_extra=True).tree["params"]  # without Adam's averages


def main(arguments=None):
    run = Run.from_command_line("gpt", __doc__, arguments, axes=("data", "model"), steps=300)
    params, prompts = load_params(run), np.stack([encode(prompt) for prompt in PROMPTS])
    cache = init_cache(len(prompts), run.mesh)
    shard = cache[0]["key"].addressable_shards[0].data
    run.print(f"cache: {2 * gpt.LAYERS} arrays {cache[0]['key'].shape}, {shard.shape} per device")
    plan = decode.lower(params, cache, prompts[:, 0], 1).plan
    plan.write_html(run.folder / "decode.html")
    run.print(f"decode: {plan.counts()}, {plan.wire_bytes:,.0f} bytes sent per device and character")

    with count_compiles() as compiled:
        start = time.perf_counter()
        tokens = generate(params, prompts, greedy, run.mesh)
        seconds = time.perf_counter() - start
    run.print(f"{tokens.size} characters in {seconds:.2f} s, with {len(compiled)} compilations")
    np.testing.assert_array_equal(tokens, generate_uncached(params, prompts))
    run.print("greedy decoding with the cache equals the forward pass without it, character by character")
    for prompt, row in zip(PROMPTS, generate(params, prompts, sampled, run.mesh), strict=True):
        run.print(f"  {prompt}|{decode_text(row)}".replace("\n", "⏎"))
    return tokens


if __name__ == "__main__":
    main()
