"""Published training runs of decoders on GPUs, with the configurations that their sources state.

The chip of a row has the profile of the stated software and power: "eager" for PyTorch without `torch.compile`, "500w"
for compiled programs on H100s with that limit, and no profile for other compiled programs. If a source states flops per
second, tokens per second follow from the flops per token that it counts.
"""

from functools import partial

from benchmarks import mpt_rows
from benchmarks.decoder_run import (
    ATTENTION,
    DEVELOPED,
    ELEMENTWISE,
    FEED_FORWARD,
    FITTED,
    HALF,
    HELD_OUT,
    KEPT,
    LAYERS,
    NOTHING,
    DecoderRun,
    tokens_per_second,
)
from shardwise.models import Decoder, preset

Specs = tuple[tuple[str, float], ...]

_MOSAIC = "MosaicML llm-foundry, scripts/train/benchmarking/README.md"
_TITAN_A100 = "torchtitan, docs/performance.md (3faaa1a, 2024)"
_TITAN_H100 = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
_TITAN_TENSOR = "torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md"
_FMS = "IBM fms-fsdp, README.md (2024)"
_PAX = "NVIDIA JAX-Toolbox, projects/pax/README.md (e0d81c9)"
_JAX_TOOLBOX = "NVIDIA JAX-Toolbox, projects/maxtext/README.md (2860390)"
_MEGATRON = "NVIDIA Megatron-LM, README.md (f2e5db4, 2024)"
_TITAN_H200 = "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
_NEMO = "NVIDIA Megatron Bridge, docs/performance-summary-archive.md"
_KEMPNER = "KempnerForge, benchmarks/mfu_scaling/mfu_scaling.md"
_A3 = "MaxText, configs/a3/llama_2_7b (efb6d9e, 2024)"
_A3_ULTRA = "Google gpu-recipes, a3ultra/llama3-1-70b/maxtext-pretraining-gke"

_MPT = {
    name: Decoder(layers, width, heads, heads, 128, 4 * width, 50368, is_gated=False, is_tied=True)
    for name, layers, width, heads in (
        ("1B", 24, 2048, 16),
        ("3B", 32, 2560, 20),
        ("7B", 32, 4096, 32),
        ("13B", 40, 5120, 40),
        ("30B", 48, 7168, 56),
        ("70B", 80, 8192, 64),
    )
}
_LLAMA2 = {
    "7B": Decoder(32, 4096, 32, 32, 128, 11008, 32000),
    "13B": Decoder(40, 5120, 40, 40, 128, 13824, 32000),
    "34B": Decoder(48, 8192, 64, 8, 128, 22016, 32000),
    "70B": Decoder(80, 8192, 64, 8, 128, 28672, 32000),
}
_LLAMA3 = {"8B": preset("llama3-8b"), "70B": preset("llama3-70b"), "405B": preset("llama3-405b")}


def _mpt(
    chip: str, specs: Specs, table: str, splits: dict[tuple[str, str], str], fitted_length: str = ""
) -> list[DecoderRun]:
    """Return the rows of a table of `mpt_rows`.

    `splits` has the splits of runs on 8 GPUs by model and length. All runs of `fitted_length` are fitted.
    """
    rows = []
    for line in table.split("\n")[1:-1]:
        model, length, gpus, sequences, microbatches, recomputed, tokens = line.split()
        split = splits.get((model, length), HELD_OUT) if gpus == "8" else HELD_OUT
        rows.append(
            DecoderRun(
                chip,
                f"MPT {model}, {int(length):,} tokens" + (", 40 GB" if specs else ""),
                _MPT[model],
                int(length),
                int(gpus),
                int(sequences),
                float(tokens),
                _MOSAIC,
                split=FITTED if length == fitted_length else split,
                microbatches=int(microbatches),
                recomputed={"layers": LAYERS, "nothing": NOTHING, "kept": KEPT}[recomputed],
                specs=specs,
            )
        )
    return rows


_FIT_MPT = {("7B", "2048"): FITTED, ("7B", "65536"): FITTED}
_MPT_ROWS = (
    *_mpt("a100:eager", (), mpt_rows.A100, {**_FIT_MPT, ("13B", "8192"): DEVELOPED, ("30B", "2048"): DEVELOPED}),
    *_mpt("a100:eager", (("memory", 40e9), ("memory_bandwidth", 1.555e12)), mpt_rows.A100_40_GB, {}),
    *_mpt("h100:eager", (), mpt_rows.H100, {**_FIT_MPT, ("7B", "8192"): DEVELOPED}, fitted_length="2048"),
)

# Eager PyTorch on 64 A100s.
_TITAN_A100_ROWS = tuple(
    DecoderRun(
        "a100:eager",
        f"{family} {model}, {name}",
        sizes[model],
        length,
        64,
        sequences,
        tokens,
        _TITAN_A100,
        split=split,
        recomputed=recomputed,
        recomputed_share=share,
    )
    for family, sizes, length, model, sequences, name, recomputed, share, tokens, split in (
        ("Llama 2", _LLAMA2, 4096, "13B", 2, "no recomputation", NOTHING, 1, 2162, HELD_OUT),
        ("Llama 2", _LLAMA2, 4096, "13B", 2, "every second layer", LAYERS, 0.5, 1914, HELD_OUT),
        ("Llama 2", _LLAMA2, 4096, "13B", 2, "every second product", HALF, 1, 1904, HELD_OUT),
        ("Llama 2", _LLAMA2, 4096, "70B", 1, "every second product", HALF, 1, 355, HELD_OUT),
        ("Llama 2", _LLAMA2, 4096, "70B", 2, "all layers", LAYERS, 1, 353, DEVELOPED),
        ("Llama 3", _LLAMA3, 8192, "8B", 1, "every second layer", LAYERS, 0.5, 2904, HELD_OUT),
        ("Llama 3", _LLAMA3, 8192, "8B", 1, "every second product", HALF, 1, 2973, DEVELOPED),
        ("Llama 3", _LLAMA3, 8192, "70B", 1, "all layers", LAYERS, 1, 331, HELD_OUT),
    )
)

# H100s with 96 GB of HBM2e and a power limit of 500 W.
_GRAND_TETON = (("memory", 96e9), ("memory_bandwidth", 2.4e12))
_TITAN_H100_ROWS = tuple(
    DecoderRun(
        chip,
        name,
        sizes,
        8192,
        devices,
        sequences,
        tokens,
        source,
        recomputed=recomputed,
        tensor=tensor,
        specs=_GRAND_TETON,
    )
    for chip, name, sizes, devices, sequences, tensor, recomputed, tokens, source in (
        ("h100:eager", "Llama 3 8B, FSDP", _LLAMA3["8B"], 8, 2, 1, HALF, 5762, _TITAN_H100),
        ("h100:500w", "Llama 3 8B, FSDP", _LLAMA3["8B"], 8, 2, 1, HALF, 6667, _TITAN_H100),
        ("h100:eager", "Llama 3 8B, FSDP", _LLAMA3["8B"], 128, 2, 1, HALF, 5605, _TITAN_H100),
        ("h100:500w", "Llama 3 8B, FSDP", _LLAMA3["8B"], 128, 2, 1, HALF, 6514, _TITAN_H100),
        ("h100:500w", "Llama 3 70B, tensor 8", _LLAMA3["70B"], 256, 2, 8, LAYERS, 597.3, _TITAN_TENSOR),
        ("h100:500w", "Llama 3 70B, tensor 8, overlapped", _LLAMA3["70B"], 256, 2, 8, LAYERS, 652.4, _TITAN_TENSOR),
        ("h100:500w", "Llama 3 8B, tensor 8", _LLAMA3["8B"], 64, 1.5, 8, HALF, 4378, _TITAN_TENSOR),
        ("h100:500w", "Llama 3 8B, tensor 8, overlapped", _LLAMA3["8B"], 64, 1.5, 8, HALF, 4809.4, _TITAN_TENSOR),
        ("h100:500w", "Llama 3 405B, tensor 8", _LLAMA3["405B"], 128, 0.25, 8, LAYERS, 109, _TITAN_A100),
    )
)

# torch.compile on 128 A100s and 96 H100s; 400 and 800 Gb/s between nodes. The share of recomputed layers is that of
# the stated ratios of HFU and MFU, to which all layers would add a third.
_FMS_ROWS = tuple(
    DecoderRun(
        chip,
        f"Llama 2 {model}",
        _LLAMA2[model],
        4096,
        128,
        2,
        tokens,
        _FMS,
        recomputed=LAYERS if share else NOTHING,
        recomputed_share=share or 1.0,
        replicas=16 if model == "7B" else 1,
        specs=(("slow_bandwidth", bandwidth),),
        unlike=unlike,
    )
    for chip, bandwidth, rates, unlike in (
        ("a100", 6.25e9, (4550, 2150, 820, 410), ""),
        ("h100", 12.5e9, (9600, 4850, 1830, 890), "128 GPUs instead of 96, which do not divide the widths"),
    )
    for (model, share), tokens in zip((("7B", 0), ("13B", 1 / 3), ("34B", 1), ("70B", 1)), rates, strict=True)
)

# XLA on DGX A100 and H100. Sizes are those of paxml/contrib/gpu/scripts_gpu/configs.py, and the recomputation of 5B.
# That of 175B is assumed: the saved products would not fit.
_GPT = {
    "5B": Decoder(24, 4096, 32, 32, 128, 16384, 50304, is_gated=False, is_tied=True),
    "175B": Decoder(96, 12288, 96, 96, 128, 49152, 50304, is_gated=False, is_tied=True),
}
_PAX_ROWS = tuple(
    DecoderRun(
        chip,
        f"GPT {name}",
        _GPT[name.split(",")[0]],
        2048,
        256,
        sequences,
        rate * 2048 / 256,
        _PAX,
        recomputed=recomputed,
    )
    for chip, name, sequences, recomputed, rate in (
        ("a100", "5B", 8, ATTENTION, 594.13),
        ("a100", "5B, Transformer Engine", 8, ATTENTION, 718.19),
        ("a100", "175B, Transformer Engine", 6, LAYERS, 20.44),
        ("h100", "5B, Transformer Engine", 8, ATTENTION, 1657.24),
        ("h100", "175B, Transformer Engine", 6, LAYERS, 51.0),
    )
)

_gelu = partial(Decoder, head_width=128, vocabulary=131072, is_gated=False, is_tied=True)
_GPT_H100 = {
    "1.7B": _gelu(24, 2048, 16, 16, hidden=8192),
    "7.1B": _gelu(30, 4096, 32, 32, hidden=16384),
    "16B": _gelu(32, 6144, 48, 48, hidden=24576),
    "32B": _gelu(48, 7168, 56, 56, hidden=28672),
}
_MEGATRON_ROWS = tuple(
    DecoderRun(
        "h100",
        f"GPT {name}, tensor {tensor}",
        _GPT_H100[name],
        4096,
        48 * tensor,
        1 / tensor,
        tokens_per_second(tflops, _GPT_H100[name], 4096, 1.0),
        _MEGATRON,
        microbatches=4,
        gathers_once=True,
        recomputed=KEPT,
        tensor=tensor,
        shards_sequence=tensor > 1,
        unlike="the source states neither microbatches nor recomputation: 4 of one sequence, without",
    )
    for name, tensor, tflops in (("1.7B", 1, 408.8), ("7.1B", 2, 465.9), ("16B", 4, 489.1), ("32B", 8, 459.6))
)

# XLA on H100s. The source does not state the network of A3 VMs: four ports of 200 Gb/s for eight GPUs are assumed.
_MAXTEXT_H100_ROWS = (
    DecoderRun("h100", "Llama 2 7B", _LLAMA2["7B"], 4096, 8, 2, 22.19 * 4096 / 8, _JAX_TOOLBOX, recomputed=ELEMENTWISE),
    *(
        DecoderRun(
            "h100",
            f"Llama 2 7B, {nodes} VMs",
            _LLAMA2["7B"],
            4096,
            8 * nodes,
            4,
            tokens_per_second(tflops, _LLAMA2["7B"], 4096, 0.5),
            _A3,
            recomputed=ELEMENTWISE,
            replicas=nodes,
            specs=(("slow_bandwidth", 12.5e9),),
        )
        for nodes, tflops in ((1, 492), (2, 422), (4, 407), (8, 409), (16, 375))
    ),
)

# torch.compile on nodes of four H200s.
_FORGE = {"7B": _LLAMA3["8B"], "13B": Decoder(40, 5120, 40, 8, 128, 17920, 128256), "70B": _LLAMA3["70B"]}
_H200_ROWS = (
    *(
        DecoderRun(
            "h200",
            f"Llama 3 {model}, tensor {tensor}",
            _FORGE[model],
            4096,
            devices,
            sequences / tensor,
            tokens / devices,
            _KEMPNER,
            microbatches=microbatches,
            recomputed=LAYERS,
            tensor=tensor,
            node=4,
        )
        for model, devices, tensor, sequences, microbatches, tokens in (
            ("7B", 1, 1, 2, 4, 10471),
            ("7B", 2, 1, 2, 4, 18728),
            ("7B", 2, 2, 4, 2, 13163),
            ("7B", 4, 1, 4, 2, 38983),
            ("7B", 4, 4, 4, 2, 25135),
            ("7B", 4, 2, 4, 2, 25980),
            ("7B", 8, 4, 4, 2, 44299),
            ("13B", 8, 4, 4, 4, 27345),
            ("7B", 16, 4, 4, 2, 82988),
            ("13B", 16, 4, 4, 4, 53814),
            ("7B", 32, 4, 4, 2, 155917),
            ("13B", 32, 4, 4, 4, 104309),
            ("70B", 32, 4, 2, 4, 17657),
        )
    ),
    DecoderRun(
        "h200", "Llama 3 70B", _LLAMA3["70B"], 8192, 256, 2, 1055.949, _A3_ULTRA, recomputed=FEED_FORWARD, replicas=2
    ),
)

ROWS: tuple[DecoderRun, ...] = (
    *_MPT_ROWS,
    *_TITAN_A100_ROWS,
    *_FMS_ROWS,
    *_PAX_ROWS,
    *_TITAN_H100_ROWS,
    *_MEGATRON_ROWS,
    *_MAXTEXT_H100_ROWS,
    *_H200_ROWS,
)

# Runs that are not predicted yet: chip, run, devices, tokens per second per device, why, source.
UNPREDICTED: tuple[tuple[str, str, int, float, str, str], ...] = (
    *(
        ("h100", f"GPT {name}", devices, tokens_per_second(tflops, sizes, 4096, 1.0), "pipeline", _MEGATRON)
        for name, sizes, devices, tflops in (
            ("70B", _gelu(84, 8192, 64, 64, hidden=32768), 768, 419.7),
            ("119B", _gelu(92, 10240, 80, 80, hidden=40960), 1536, 420.5),
            ("177B", _gelu(96, 12288, 96, 96, hidden=49152), 2304, 432.8),
            ("314B", _gelu(96, 16384, 128, 128, hidden=65536), 3072, 474.4),
            ("462B", _gelu(112, 18432, 144, 144, hidden=73728), 6144, 459.9),
        )
    ),
    ("h100:500w", "Llama 3 405B, 1F1B", 512, 100, "pipeline, float8", _TITAN_H100),
    ("h100:500w", "Llama 3 405B, interleaved 1F1B", 512, 128, "pipeline, float8", _TITAN_H100),
    ("h100:500w", "Llama 3 8B, FSDP", 8, 8532, "float8", _TITAN_H100),
    ("h100:500w", "Llama 3 8B, FSDP", 128, 8380, "float8", _TITAN_H100),
    ("h100:500w", "Llama 3 70B, tensor 8", 256, 829, "float8", _TITAN_H100),
    ("h100:500w", "Llama 3 8B, 32,768 tokens", 8, 3890, "float8", _TITAN_H100),
    ("h100", "Llama 3 8B, FSDP", 8, 14451, "float8", _NEMO),
    ("h100", "Llama 3 70B", 64, 1621, "pipeline, float8", _NEMO),
    ("h100", "Llama 3 405B", 1024, 311, "pipeline, float8", _NEMO),
    ("h200", "Llama 3 8B, FSDP", 32, 10938, "float8", _TITAN_H200),
    ("h200", "Llama 3 8B, FSDP", 64, 10753, "float8", _TITAN_H200),
    ("h200", "Llama 3 13B, FSDP", 8, 35405 / 8, "eager PyTorch, of which the H200 has no profile", _KEMPNER),
)
