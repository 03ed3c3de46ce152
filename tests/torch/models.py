"""Models of torch.nn, torchvision and transformers in small sizes, with inputs and a loss.

Each entry of MODELS builds a `Case`. Weights are random, with a fixed seed; nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

VOCABULARY = 64


@dataclass
class Case:
    """A module in eval mode and the arguments of a call.

    Attributes:
        module: the module.
        inputs: the keyword or positional tensors of `forward`; the first dim of each is the batch.
        loss: returns the scalar loss of the results, for PyTorch and for arrays.
        options: other keyword arguments.
    """

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    loss: Callable[[Any], Any] = lambda outputs: outputs.loss
    options: dict[str, Any] = field(default_factory=dict)


def tokens(batch: int = 8, length: int = 16) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def mean_square(outputs: Any) -> Any:
    return (outputs**2).mean()


SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
DECODER = dict(**SIZES, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def causal(config: Any) -> Case:
    """A decoder of transformers with its own next-token loss."""
    ids = tokens()
    module = transformers.AutoModelForCausalLM.from_config(config)
    return Case(module, {"input_ids": ids, "labels": ids}, options={"use_cache": False})


def gpt2() -> Case:
    return causal(transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=64, n_layer=2, n_head=4))


def llama() -> Case:
    return causal(transformers.LlamaConfig(**DECODER))


def mistral() -> Case:
    return causal(transformers.MistralConfig(**DECODER, sliding_window=8))


def qwen() -> Case:
    return causal(transformers.Qwen3Config(**DECODER, head_dim=16))


def gemma() -> Case:
    return causal(transformers.Gemma2Config(**DECODER, head_dim=16, sliding_window=8))


def mixtral() -> Case:
    return causal(transformers.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2))


def bert() -> Case:
    config = transformers.BertConfig(**SIZES, max_position_embeddings=32)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[:, 12:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    return Case(transformers.BertForMaskedLM(config), inputs)


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    module = transformers.T5ForConditionalGeneration(config)
    return Case(module, {"input_ids": tokens(), "labels": tokens(8, 12)}, options={"use_cache": False})


def whisper() -> Case:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {"input_features": numbers(8, 16, 32), "labels": tokens(8, 12)}
    return Case(transformers.WhisperForConditionalGeneration(config), inputs, options={"use_cache": False})


def clip() -> Case:
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    text = dict(**sizes, vocab_size=VOCABULARY, max_position_embeddings=16, eos_token_id=VOCABULARY - 1)
    config = transformers.CLIPConfig(
        text_config=text, vision_config=dict(**sizes, image_size=32, patch_size=8), projection_dim=32
    )
    inputs = {"input_ids": tokens(), "pixel_values": numbers(8, 3, 32, 32)}
    return Case(transformers.CLIPModel(config), inputs, options={"return_loss": True})


def vit_transformers() -> Case:
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=10)
    labels = torch.arange(8) % 10
    return Case(
        transformers.ViTForImageClassification(config), {"pixel_values": numbers(8, 3, 32, 32), "labels": labels}
    )


def image_model(module: nn.Module, size: int = 64) -> Case:
    return Case(module, {"x": numbers(8, 3, size, size)}, mean_square)


def resnet50() -> Case:
    return image_model(torchvision.models.resnet50(num_classes=16))


def convnext() -> Case:
    blocks = torchvision.models.convnext.CNBlockConfig
    settings = [blocks(32, 64, 1), blocks(64, 128, 2), blocks(128, None, 1)]
    return image_model(torchvision.models.ConvNeXt(settings, num_classes=16))


def vit() -> Case:
    sizes = dict(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128)
    module = torchvision.models.VisionTransformer(**sizes, num_classes=16)
    nn.init.normal_(module.heads.head.weight)  # zeros by default, which hide all other gradients
    return image_model(module, 32)


def swin() -> Case:
    sizes = dict(patch_size=[4, 4], embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4])
    return image_model(torchvision.models.SwinTransformer(**sizes, num_classes=16))


class PyramidLoss(nn.Module):
    """A detection backbone: the features of a ResNet at several scales."""

    def __init__(self) -> None:
        super().__init__()
        backbone = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d)
        layers = {"layer2": "0", "layer3": "1", "layer4": "2"}
        self.backbone = torchvision.models.detection.backbone_utils.BackboneWithFPN(
            backbone, layers, [128, 256, 512], 64
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(level**2).mean() for level in self.backbone(x).values()])


def detection_backbone() -> Case:
    return Case(PyramidLoss(), {"x": numbers(8, 3, 64, 64)}, lambda outputs: outputs.mean())


class UNet(nn.Module):
    """A small denoiser for diffusion: down, attention in the middle, up with skip connections, time embeddings."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 2 * width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        )
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.Sequential(
            nn.GroupNorm(8, 2 * width),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1),
        )
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-torch.arange(16, dtype=torch.float32, device=x.device) / 4)
        angles = time[:, None] * frequencies
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        skip = self.enter(x)
        hidden = self.down(skip) + embedding[:, :, None, None]
        batch, channels, height, width = hidden.shape
        sequence = hidden.flatten(2).transpose(1, 2)
        sequence = sequence + self.attention(sequence, sequence, sequence, need_weights=False)[0]
        hidden = sequence.transpose(1, 2).reshape(batch, channels, height, width)
        return self.leave(torch.cat([self.up(hidden), skip], dim=1))


def unet() -> Case:
    return Case(UNet(), {"x": numbers(8, 3, 16, 16), "time": torch.linspace(0, 1, 8)}, mean_square)


class Tagger(nn.Module):
    """An LSTM over embedded tokens, with a loss per token."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.lstm = nn.LSTM(size, size, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * size, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.lstm(self.embedding(ids))[0])
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def lstm() -> Case:
    return Case(Tagger(), {"ids": tokens(8, 6)}, lambda outputs: outputs)


class Recommender(nn.Module):
    """Large embeddings, bags of items, and pairwise products of features, as in DLRM."""

    def __init__(self, rows: int = 4096, size: int = 32) -> None:
        super().__init__()
        self.users = nn.Embedding(rows, size)
        self.items = nn.EmbeddingBag(rows, size, mode="mean")
        self.dense = nn.Sequential(nn.Linear(8, size), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(size + 3, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: torch.Tensor, items: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        features = torch.stack([self.users(user), self.items(items), self.dense(dense)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.tril_indices(3, 3, offset=-1)
        return self.top(torch.cat([features[:, 2], products[:, rows, columns]], dim=1)).squeeze(1)


def recommender() -> Case:
    generator = torch.Generator().manual_seed(3)
    inputs = {
        "user": torch.randint(0, 4096, (16,), generator=generator),
        "items": torch.randint(0, 4096, (16, 5), generator=generator),
        "dense": numbers(16, 8),
    }
    return Case(Recommender(), inputs, mean_square)


class GraphNetwork(nn.Module):
    """Two layers of attention over the edges of a graph, by index_add and scatter_reduce."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.enter = nn.Linear(16, size)
        self.message = nn.ModuleList([nn.Linear(2 * size, size) for _ in range(2)])
        self.score = nn.ModuleList([nn.Linear(2 * size, 1) for _ in range(2)])

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(nodes)
        source, target = edges[:, 0], edges[:, 1]
        for message, score in zip(self.message, self.score, strict=True):
            pairs = torch.cat([hidden[source], hidden[target]], dim=1)
            weights = torch.exp(score(pairs).squeeze(1).clamp(-5, 5))
            total = torch.zeros_like(hidden[:, 0]).scatter_add(0, target, weights)
            sent = message(pairs).relu() * (weights / (total[target] + 1e-6))[:, None]
            hidden = hidden + torch.zeros_like(hidden).index_add(0, target, sent)
        return hidden


def graph_network() -> Case:
    edges = torch.randint(0, 32, (128, 2), generator=torch.Generator().manual_seed(4))
    return Case(GraphNetwork(), {"nodes": numbers(32, 16), "edges": edges}, mean_square)


MODELS: dict[str, tuple[str, Callable[[], Case]]] = {
    "GPT-2": ("transformers", gpt2),
    "Llama": ("transformers", llama),
    "Mistral": ("transformers", mistral),
    "Qwen 3": ("transformers", qwen),
    "Mixtral": ("transformers", mixtral),
    "Gemma 2": ("transformers", gemma),
    "BERT": ("transformers", bert),
    "T5": ("transformers", t5),
    "ViT": ("transformers", vit_transformers),
    "Whisper": ("transformers", whisper),
    "CLIP": ("transformers", clip),
    "ResNet-50": ("torchvision", resnet50),
    "ConvNeXt": ("torchvision", convnext),
    "VisionTransformer": ("torchvision", vit),
    "Swin": ("torchvision", swin),
    "ResNet-18 with a feature pyramid": ("torchvision", detection_backbone),
    "U-Net": ("torch.nn", unet),
    "LSTM": ("torch.nn", lstm),
    "recommender": ("torch.nn", recommender),
    "graph network": ("torch.nn", graph_network),
}


def build(name: str) -> Case:
    """Build a model with seeded weights, in eval mode."""
    torch.manual_seed(0)
    case = MODELS[name][1]()
    case.module.eval()
    return case
