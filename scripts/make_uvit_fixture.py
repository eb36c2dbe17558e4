#!/usr/bin/env python3
"""Writes tests/golden/uvit/uvit_tiny.safetensors: a U-ViT in f64, its output and all of its gradients.

The model is written here from the paper (Bao et al., "All are Worth Words: A ViT Backbone for Diffusion Models",
arXiv 2209.12152: time and label as tokens, long skip connections by concatenation and a linear layer, a 3 x 3
convolution at the end), with the names of the public state dict. Run it where PyTorch, numpy and safetensors are:

    python3 scripts/make_uvit_fixture.py tests/golden/uvit/uvit_tiny.safetensors
"""

import math
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

SIZE, PATCH, CHANNELS, WIDTH, BLOCKS, HEADS, CLASSES = 8, 2, 3, 32, 5, 2, 10
SEED = 20


def shapes():
    """Name and shape of every parameter, in the order of the state dict."""
    tokens = 2 + (SIZE // PATCH) ** 2
    all_shapes = {
        "pos_embed": (1, tokens, WIDTH),
        "patch_embed.proj.weight": (WIDTH, CHANNELS, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "label_emb.weight": (CLASSES + 1, WIDTH),
    }

    def block(name, skip):
        for norm in ("norm1", "norm2"):
            all_shapes[f"{name}.{norm}.weight"] = all_shapes[f"{name}.{norm}.bias"] = (WIDTH,)
        all_shapes[f"{name}.attn.qkv.weight"] = (3 * WIDTH, WIDTH)
        for layer, rows, columns in (("attn.proj", WIDTH, WIDTH), ("mlp.fc1", 4 * WIDTH, WIDTH),
                                     ("mlp.fc2", WIDTH, 4 * WIDTH)):
            all_shapes[f"{name}.{layer}.weight"] = (rows, columns)
            all_shapes[f"{name}.{layer}.bias"] = (rows,)
        if skip:
            all_shapes[f"{name}.skip_linear.weight"] = (WIDTH, 2 * WIDTH)
            all_shapes[f"{name}.skip_linear.bias"] = (WIDTH,)

    for i in range(BLOCKS // 2):
        block(f"in_blocks.{i}", skip=False)
    block("mid_block", skip=False)
    for i in range(BLOCKS // 2):
        block(f"out_blocks.{i}", skip=True)
    all_shapes["norm.weight"] = all_shapes["norm.bias"] = (WIDTH,)
    all_shapes["decoder_pred.weight"] = (PATCH * PATCH * CHANNELS, WIDTH)
    all_shapes["decoder_pred.bias"] = (PATCH * PATCH * CHANNELS,)
    all_shapes["final_layer.weight"] = (CHANNELS, CHANNELS, 3, 3)
    all_shapes["final_layer.bias"] = (CHANNELS,)
    return all_shapes


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def norm(p, name, x):
    return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)


def attention(p, name, x):
    batch, tokens, width = x.shape
    q, k, v = linear(p, name + ".qkv", x).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // HEADS), dim=-1)
    return linear(p, name + ".proj", (weights @ v).transpose(1, 2).reshape(batch, tokens, width))


def block(p, name, x, skip=None):
    if skip is not None:
        x = linear(p, name + ".skip_linear", torch.cat([x, skip], dim=-1))
    x = x + attention(p, name + ".attn", norm(p, name + ".norm1", x))
    return x + linear(p, name + ".mlp.fc2", F.gelu(linear(p, name + ".mlp.fc1", norm(p, name + ".norm2", x))))


def time_token(t):
    half = WIDTH // 2
    angles = t[:, None] * torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float64) / half)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1)


def uvit(p, image, t, y):
    x = F.conv2d(image, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=PATCH)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([p["label_emb.weight"][y][:, None], time_token(t)[:, None], x], dim=1) + p["pos_embed"]
    skips = []
    for i in range(BLOCKS // 2):
        x = block(p, f"in_blocks.{i}", x)
        skips.append(x)
    x = block(p, "mid_block", x)
    for i in range(BLOCKS // 2):
        x = block(p, f"out_blocks.{i}", x, skips.pop())
    x = linear(p, "decoder_pred", norm(p, "norm", x))[:, 2:]
    grid = SIZE // PATCH
    x = x.view(-1, grid, grid, PATCH, PATCH, CHANNELS).permute(0, 5, 1, 3, 2, 4).reshape(-1, CHANNELS, SIZE, SIZE)
    return F.conv2d(x, p["final_layer.weight"], p["final_layer.bias"], padding=1)


def main(path):
    numbers = np.random.default_rng(SEED)
    tensors = {}
    for name, shape in shapes().items():
        values = 0.25 * numbers.standard_normal(shape) + (1 if "norm" in name and name.endswith(".weight") else 0)
        tensors[name] = values.astype(np.float32)
    p = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in tensors.items()}
    image = numbers.standard_normal((2, CHANNELS, SIZE, SIZE)).astype(np.float32)
    dout = numbers.standard_normal((2, CHANNELS, SIZE, SIZE)).astype(np.float32)
    t, y = np.array([3.25, 871.0]), np.array([4, CLASSES])
    x = torch.tensor(image, dtype=torch.float64, requires_grad=True)
    out = uvit(p, x, torch.tensor(t), torch.tensor(y))
    (out * torch.tensor(dout, dtype=torch.float64)).sum().backward()
    tensors |= {"in.image": image, "in.t": t, "in.y": y, "in.dout": dout, "out": out.detach().numpy(),
                "grad.in.image": x.grad.numpy()}
    tensors |= {"grad." + name: value.grad.numpy().astype(np.float32) for name, value in p.items()}
    save_file({name: np.ascontiguousarray(v) for name, v in tensors.items()}, path,
              {"generator": "scripts/make_uvit_fixture.py", "seed": str(SEED), "file": "uvit_tiny.safetensors",
               "references": f"arXiv 2209.12152, written from the paper in f64; torch {torch.__version__}"})


if __name__ == "__main__":
    main(sys.argv[1])
