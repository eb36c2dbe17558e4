#!/usr/bin/env python3
"""Times the training step of `ditbench step` in PyTorch on the CPU, or what its benches ops, vae and inception measure.

Optional: nothing of ditrain needs Python. `pip install torch` brings all that is needed; torch.compile needs a C++
compiler besides and is left out, with a message, where there is none.

  scripts/bench_pytorch.py --model S --batch 16 --precision f32,bf16 --peak-gflops 474,940
  scripts/bench_pytorch.py --model S --batch 16 --against build/release/bin/ditbench --json step.json
  scripts/bench_pytorch.py --ops --against build/release/bin/ditbench
  scripts/bench_pytorch.py --inception --threads 2 --precision f32,bf16 --against build/release/bin/ditbench
  scripts/bench_pytorch.py --vae --precision f32,bf16 --against build/release/bin/ditbench

Every measurement is a process of its own: its memory is its own, and threads of one never disturb another. With
--against the processes take turns (eager, compile, ditbench, eager, ...); the ratios are of the medians over all turns.
The step: t, noise and dropped labels are drawn, x_t is made, forward, loss (mean square error of the noise and the
variational bound of the learned variance), backward, AdamW, moving average of the weights. Attention is SDPA; AdamW is
the faster of fused and foreach. The FID network: features of a batch of 299 x 299 without gradients, BatchNorms folded
into the convolutions as ours are, which eager PyTorch would not do; compiled with frozen weights, which PyTorch packs.
The VAE: one image of 256 x 256 encoded or decoded, contiguous and channels last, eager and compiled, all weights in memory.
"""
import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
SIDE, CHANNELS, CLASSES, FREQUENCIES, LABEL_DROP = 32, 4, 1000, 256, 0.1
STEPS_OF_NOISE, LEARNING_RATE, EMA_DECAY = 1000, 1e-4, 0.9999
PAPER = {"tanh-GELU forward": 13.3, "tanh-GELU backward": 12.9, "AdamW+EMA": 12.5}


def parse_model(name):
    """"S", "DiT-S/2" -> (name, width, depth, heads, patch)."""
    short, _, patch = name.removeprefix("DiT-").partition("/")
    if short not in SIZES or patch not in ("", "2", "4", "8"):
        sys.exit(f"bench_pytorch: error: unknown model {name!r}; expected S, B, L, XL or DiT-S/2 ... DiT-XL/8")
    return (f"DiT-{short}/{patch or 2}", *SIZES[short], int(patch or 2))


def forward_macs(width, depth, patch):
    """Multiply-adds of a forward pass of one image, as ditbench counts them."""
    tokens, hidden = (SIDE // patch) ** 2, 4 * width
    ends = tokens * width * 3 * CHANNELS * patch * patch + FREQUENCIES * width + width * width + 2 * width * width
    block = tokens * (4 * width * width + 2 * width * hidden) + 2 * tokens * tokens * width + 6 * width * width
    return ends + depth * block


# ---- The model and its step, in the child process. ----


def make_model(torch, width, depth, heads, patch):
    nn, functional = torch.nn, torch.nn.functional
    tokens = (SIDE // patch) ** 2

    def norm(x, shift, scale):
        return functional.layer_norm(x, (width,), eps=1e-6) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.modulation = nn.Linear(width, 6 * width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attention(self, x):
            batch = x.shape[0]
            q, k, v = self.qkv(x).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = functional.scaled_dot_product_attention(q, k, v)
            return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))

        def forward(self, x, c):
            shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).chunk(6, dim=1)
            x = x + gate1.unsqueeze(1) * self.attention(norm(x, shift1, scale1))
            hidden = functional.gelu(self.fc1(norm(x, shift2, scale2)), approximate="tanh")
            return x + gate2.unsqueeze(1) * self.fc2(hidden)

    class Dit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(CHANNELS, width, patch, patch)
            self.register_buffer("position", torch.randn(1, tokens, width) * 0.02)
            self.time1, self.time2 = nn.Linear(FREQUENCIES, width), nn.Linear(width, width)
            self.label = nn.Embedding(CLASSES + 1, width)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.modulation = nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, 2 * CHANNELS * patch * patch)
            half = FREQUENCIES // 2
            self.register_buffer("waves", torch.exp(-math.log(10000.0) * torch.arange(half) / half))

        def forward(self, x, t, y):
            batch, grid = x.shape[0], SIDE // patch
            angles = t.float().unsqueeze(1) * self.waves
            c = self.time2(functional.silu(self.time1(torch.cat([angles.cos(), angles.sin()], dim=1))))
            c = functional.silu(c + self.label(y))
            x = self.embed(x).flatten(2).transpose(1, 2) + self.position
            for block in self.blocks:
                x = block(x, c)
            shift, scale = self.modulation(c).chunk(2, dim=1)
            x = self.out(norm(x, shift, scale)).view(batch, grid, grid, patch, patch, 2 * CHANNELS)
            return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, 2 * CHANNELS, SIDE, SIDE)

    return Dit()


class Noise:
    """The linear schedule of 1,000 steps, its loss, and one batch."""

    def __init__(self, torch):
        self.torch = torch
        beta = torch.linspace(1e-4, 0.02, STEPS_OF_NOISE, dtype=torch.float64)
        product = torch.cumprod(1 - beta, 0)
        before = torch.cat([torch.ones(1, dtype=torch.float64), product[:-1]])
        posterior = beta * (1 - before) / (1 - product)
        table = {"signal": product.sqrt(),
                 "noise": (1 - product).sqrt(),
                 "log_beta": beta.log(),
                 "log_posterior": torch.cat([posterior[1:2], posterior[1:]]).log(),
                 "coef_x0": beta * before.sqrt() / (1 - product),
                 "coef_xt": (1 - before) * (1 - beta).sqrt() / (1 - product)}
        self.table = {name: values.float() for name, values in table.items()}

    def at(self, name, t):
        return self.table[name][t].view(-1, 1, 1, 1)

    def noisy(self, x0, noise, t):
        return self.at("signal", t) * x0 + self.at("noise", t) * noise

    def loss(self, out, x0, x_t, noise, t):
        """mse + vb in bits; the bound trains the variance channels only."""
        torch = self.torch
        predicted, share = out.float().chunk(2, dim=1)
        mse = (predicted - noise).square().mean()
        low, high = self.at("log_posterior", t), self.at("log_beta", t)
        log_variance = low + (share + 1) / 2 * (high - low)
        x0_hat = (x_t - self.at("noise", t) * predicted.detach()) / self.at("signal", t)
        mean = self.at("coef_x0", t) * x0_hat + self.at("coef_xt", t) * x_t
        true_mean = self.at("coef_x0", t) * x0 + self.at("coef_xt", t) * x_t
        kl = 0.5 * (log_variance - low - 1 + (low - log_variance).exp() +
                    (true_mean - mean).square() * (-log_variance).exp())
        # Of t = 0: the likelihood of x0's bin of 1/127.5, with the tanh approximation of the normal distribution.
        inverse = (-0.5 * log_variance).exp()
        cdf = [0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z)))
               for z in ((x0 - mean + 1 / 255) * inverse, (x0 - mean - 1 / 255) * inverse)]
        upper = torch.where(x0 > 0.999, torch.ones_like(x0), cdf[0])
        lower = torch.where(x0 < -0.999, torch.zeros_like(x0), cdf[1])
        nll = -(upper - lower).clamp(min=1e-12).log()
        return mse + torch.where(t.view(-1, 1, 1, 1) == 0, nll, kl).mean() / math.log(2)


def fastest_adamw(torch, parameters):
    """"fused" or "foreach": tried on copies of some parameters."""
    some, elements = [], 0
    for p in parameters:
        if elements < 1 << 24:
            some.append(torch.nn.Parameter(p.detach().clone()))
            elements += p.numel()
    seconds = {}
    for way in ("fused", "foreach"):
        try:
            optimizer = torch.optim.AdamW(some, lr=LEARNING_RATE, weight_decay=0.0, **{way: True})
            for p in some:
                p.grad = torch.ones_like(p)
            optimizer.step()
            seconds[way] = min(timed(optimizer.step) for _ in range(3))
        except RuntimeError as error:
            print(f"bench_pytorch: no {way} AdamW: {error}", file=sys.stderr)
    return min(seconds, key=seconds.get)


def timed(call, calls=1):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def step_child(torch, job):
    _, width, depth, heads, patch = parse_model(job["model"])
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    model, process, batch = make_model(torch, width, depth, heads, patch), Noise(torch), job["batch"]
    parameters = list(model.parameters())
    average = [p.detach().clone() for p in parameters]
    way = fastest_adamw(torch, parameters)
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, **{way: True})
    images, labels = torch.randn(batch, CHANNELS, SIDE, SIDE), torch.randint(CLASSES, (batch,))

    def loss_of(x0, noise, t, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=job["precision"] == "bf16"):
            x_t = process.noisy(x0, noise, t)
            out = model(x_t, t, y)
        return process.loss(out, x0, x_t, noise, t)

    compute = torch.compile(loss_of) if job["mode"] == "compile" else loss_of

    def step():
        t, noise = torch.randint(STEPS_OF_NOISE, (batch,)), torch.randn_like(images)
        y = torch.where(torch.rand(batch) < LABEL_DROP, CLASSES, labels)
        loss = compute(images, noise, t, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 1 - EMA_DECAY)
        if not math.isfinite(loss.item()):
            raise RuntimeError("the loss is not finite")

    for _ in range(2):
        step()
    seconds = [timed(step) for _ in range(job["steps"])]
    return {"seconds": seconds, "adamw": way, "torch": torch.__version__}


def make_inception(torch):
    """The network of `ditrain/nn/inception.hpp` with made-up weights."""
    nn = torch.nn

    def conv(inputs, outputs, kernel, stride=1, same=False):
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        pad = (height // 2, width // 2) if same else 0
        return nn.Sequential(nn.Conv2d(inputs, outputs, (height, width), stride, pad), nn.ReLU())

    class Branches(nn.Module):
        """Side by side."""

        def __init__(self, *branches):
            super().__init__()
            self.branches = nn.ModuleList(branches)

        def forward(self, x):
            return torch.cat([branch(x) for branch in self.branches], 1)

    def average():
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def halving():
        return nn.MaxPool2d(3, 2)

    def block_a(n, pooled):
        return Branches(conv(n, 64, 1), nn.Sequential(conv(n, 48, 1), conv(48, 64, 5, same=True)),
                        nn.Sequential(conv(n, 64, 1), conv(64, 96, 3, same=True), conv(96, 96, 3, same=True)),
                        nn.Sequential(average(), conv(n, pooled, 1)))

    def block_b(n):
        return Branches(conv(n, 384, 3, 2),
                        nn.Sequential(conv(n, 64, 1), conv(64, 96, 3, same=True), conv(96, 96, 3, 2)), halving())

    def row(inputs, outputs):
        return conv(inputs, outputs, (1, 7), same=True)

    def column(inputs, outputs):
        return conv(inputs, outputs, (7, 1), same=True)

    def block_c(n, inner):
        return Branches(conv(n, 192, 1), nn.Sequential(conv(n, inner, 1), row(inner, inner), column(inner, 192)),
                        nn.Sequential(conv(n, inner, 1), column(inner, inner), row(inner, inner), column(inner, inner),
                                      row(inner, 192)), nn.Sequential(average(), conv(n, 192, 1)))

    def block_d(n):
        return Branches(nn.Sequential(conv(n, 192, 1), conv(192, 320, 3, 2)),
                        nn.Sequential(conv(n, 192, 1), row(192, 192), column(192, 192), conv(192, 192, 3, 2)),
                        halving())

    def both(n):
        return Branches(conv(n, 384, (1, 3), same=True), conv(n, 384, (3, 1), same=True))

    def block_e(n, pool):
        return Branches(conv(n, 320, 1), nn.Sequential(conv(n, 384, 1), both(384)),
                        nn.Sequential(conv(n, 448, 1), conv(448, 384, 3, same=True), both(384)),
                        nn.Sequential(pool, conv(n, 192, 1)))

    return nn.Sequential(conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3, same=True), halving(), conv(64, 80, 1),
                         conv(80, 192, 3), halving(), block_a(192, 32), block_a(256, 64), block_a(288, 64),
                         block_b(288), block_c(768, 128), block_c(768, 160), block_c(768, 160), block_c(768, 192),
                         block_d(768), block_e(1280, average()), block_e(2048, nn.MaxPool2d(3, 1, 1)),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())


def macs_of(torch, model, x):
    """Multiply-adds of convolutions, linear layers and attention, as ditbench counts them."""
    macs, hooks = [0], []

    def count(layer, inputs, y):
        if isinstance(layer, torch.nn.Conv2d):
            macs[0] += y.numel() * layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
        elif y.dim() == 3:
            macs[0] += y.numel() * layer.in_features
            if layer.out_features == 3 * layer.in_features:
                macs[0] += 2 * y.shape[1] * y.shape[1] * layer.in_features

    for layer in model.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            hooks.append(layer.register_forward_hook(count))
    model(x)
    for hook in hooks:
        hook.remove()
    return macs[0]


def inception_child(torch, job):
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    torch.set_grad_enabled(False)
    layout = torch.channels_last if "channels_last" in job["mode"] else torch.contiguous_format
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    model = make_inception(torch).eval().to(dtype=dtype, memory_format=layout)
    images = torch.rand(job["batch"], 3, 299, 299).to(dtype=dtype, memory_format=layout)
    macs = macs_of(torch, model, images[:1])
    if "compile" in job["mode"]:
        import torch._inductor.config
        torch._inductor.config.freezing = True
        model = torch.compile(model)
    for _ in range(2):
        features = model(images)
    if features.shape != (job["batch"], 2048):
        raise RuntimeError(f"features of another shape: {features.shape}")
    seconds = [timed(lambda: model(images)) for _ in range(job["steps"])]
    return {"seconds": seconds, "macs": macs, "torch": torch.__version__}


def ops_child(torch, job):
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    functional, aten = torch.nn.functional, torch.ops.aten
    rows, cols = job["rows"], job["cols"]
    # No memory of the child before counts: each operator allocates its result, as eager PyTorch does.
    x, dy = torch.rand(rows, cols), torch.rand(rows, cols)
    shift, scale = torch.rand(cols), torch.rand(cols)
    mean, rstd = x.mean(1, keepdim=True), 1 / (x.var(1, keepdim=True, unbiased=False) + 1e-6).sqrt()

    def modulated(value):
        return functional.layer_norm(value, (cols,), eps=1e-6) * (1 + scale) + shift

    def norm_backward():
        normalised = aten.native_layer_norm(x, [cols], None, None, 1e-6)[0]
        dshift, dscale = dy.sum(0), (dy * normalised).sum(0)
        wanted = [True, False, False]
        dx = aten.native_layer_norm_backward(dy * (1 + scale), x, [cols], mean, rstd, None, None, wanted)[0]
        return dx, dshift, dscale

    calls = {
        "tanh-GELU forward": lambda: functional.gelu(x, approximate="tanh"),
        "tanh-GELU backward": lambda: aten.gelu_backward(dy, x, approximate="tanh"),
        "SiLU forward": lambda: functional.silu(x),
        "SiLU backward": lambda: aten.silu_backward(dy, x),
        "LayerNorm+modulate forward": lambda: modulated(x),
        "LayerNorm+modulate backward": norm_backward,
        "softmax forward": lambda: torch.softmax(x, -1),
        "softmax backward": lambda: aten._softmax_backward_data(dy, x, -1, x.dtype),
        "normals": lambda: torch.randn(rows, cols),
    }
    for head in job["attention"]:
        shape = (head["batch"], head["tokens"], 3, head["heads"], head["head_dim"])
        qkv = torch.rand(shape, requires_grad=True)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = functional.scaled_dot_product_attention(q, k, v)
        d_out = torch.rand_like(out)
        name = f"T={head['tokens']} D={head['head_dim']}"
        calls[f"attention forward {name}"] = lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(
            q.detach(), k.detach(), v.detach())
        calls[f"attention backward {name}"] = lambda out=out, qkv=qkv, d_out=d_out: torch.autograd.grad(
            out, qkv, d_out, retain_graph=True)
    parameters, average = [torch.nn.Parameter(x.clone())], [x.clone()]
    parameters[0].grad = dy
    way = fastest_adamw(torch, parameters)
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, **{way: True})

    def adamw():
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 1 - EMA_DECAY)

    calls["AdamW+EMA"] = adamw
    seconds = {}
    for name, call in calls.items():
        call()
        calls_each = max(1, round(0.02 / max(timed(call), 1e-6)))
        seconds[name] = [timed(call, calls_each) for _ in range(job["steps"])]
    return {"seconds": seconds, "adamw": way, "torch": torch.__version__}


# ---- The autoencoder, in the child process. ----

WIDTHS, LATENTS, GROUPS, IMAGE_SIDE = (128, 256, 512, 512), 4, 32, 256


def make_autoencoder(torch):
    """Encoder and decoder of Stable Diffusion, with random weights."""
    nn, functional = torch.nn, torch.nn.functional

    def norm(channels):
        return nn.GroupNorm(GROUPS, channels, eps=1e-6)

    class Resnet(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.norm1, self.conv1 = norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
            self.norm2, self.conv2 = norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
            self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x):
            h = self.conv1(functional.silu(self.norm1(x)))
            return self.shortcut(x) + self.conv2(functional.silu(self.norm2(h)))

    class Attention(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm = norm(channels)
            self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

        def forward(self, x):
            batch, channels, height, width = x.shape
            tokens = self.norm(x).flatten(2).transpose(1, 2)
            q, k, v = self.qkv(tokens).unsqueeze(1).chunk(3, dim=-1)
            y = self.out(functional.scaled_dot_product_attention(q, k, v).squeeze(1))
            return x + y.transpose(1, 2).reshape(batch, channels, height, width)

    class Halve(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, stride=2)

        def forward(self, x):
            return self.conv(functional.pad(x, (0, 1, 0, 1)))

    def middle(channels):
        return [Resnet(channels, channels), Attention(channels), Resnet(channels, channels)]

    def ends(channels, outputs):
        return [norm(channels), nn.SiLU(), nn.Conv2d(channels, outputs, 3, padding=1)]

    def encoder():
        layers, inputs = [nn.Conv2d(3, WIDTHS[0], 3, padding=1)], WIDTHS[0]
        for level, width in enumerate(WIDTHS):
            layers += [Resnet(inputs, width), Resnet(width, width)]
            layers += [Halve(width)] if level + 1 < len(WIDTHS) else []
            inputs = width
        layers += middle(inputs) + ends(inputs, 2 * LATENTS) + [nn.Conv2d(2 * LATENTS, 2 * LATENTS, 1)]
        return nn.Sequential(*layers)

    def decoder():
        inputs = WIDTHS[-1]
        layers = [nn.Conv2d(LATENTS, LATENTS, 1), nn.Conv2d(LATENTS, inputs, 3, padding=1)] + middle(inputs)
        for level, width in enumerate(reversed(WIDTHS)):
            layers += [Resnet(inputs, width), Resnet(width, width), Resnet(width, width)]
            if level + 1 < len(WIDTHS):
                layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)]
            inputs = width
        return nn.Sequential(*layers, *ends(inputs, 3))

    return nn.ModuleDict({"encode": encoder(), "decode": decoder()})


def vae_child(torch, job):
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    layout = torch.channels_last if "channels_last" in job["mode"] else torch.contiguous_format
    encodes = job["direction"] == "encode"
    with torch.inference_mode():
        model = make_autoencoder(torch).to(dtype=dtype, memory_format=layout).eval()[job["direction"]]
        side = job["side"] if encodes else job["side"] // 8
        x = torch.randn(1, 3 if encodes else LATENTS, side, side).to(dtype=dtype, memory_format=layout)
        macs = macs_of(torch, model, x)
        compute = torch.compile(model) if "compile" in job["mode"] else model
        for _ in range(2):
            y = compute(x)
        if not torch.isfinite(y).all():
            raise RuntimeError("the result is not finite")
        seconds = [timed(lambda: compute(x)) for _ in range(job["steps"])]
    return {"seconds": seconds, "macs": macs, "torch": torch.__version__}


def child(job):
    """Runs one job and prints its result as the last line."""
    try:
        import torch
    except ImportError as error:
        sys.exit(f"bench_pytorch: error: PyTorch is not installed ({error}); try: pip install torch")
    torch.set_num_interop_threads(1)
    kinds = {"ops": ops_child, "step": step_child, "inception": inception_child, "vae": vae_child}
    result = kinds[job["kind"]](torch, job)
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


# ---- The parent: who runs when, and the table. ----


class Failed(Exception):
    pass


def run(command, leaves=None):
    """Its output; a program that wrote what it `leaves` counts as done (ditbench fails last, over a doubtful row)."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 and leaves and os.path.exists(leaves):
        print("note: " + (result.stderr or result.stdout).strip().splitlines()[-1])
    elif result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit code {result.returncode}"]
        raise Failed(next((line for line in reversed(lines) if "rror" in line), lines[-1]))
    return result.stdout


def run_torch(job):
    return json.loads(run([sys.executable, os.path.abspath(__file__), "--child", json.dumps(job)]).splitlines()[-1])


def run_ditbench(program, arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        run([program, *arguments, "--json", path], leaves=path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def modes(wanted):
    if any("compile" in mode for mode in wanted) and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        print("torch.compile is left out: no C++ compiler found")
        wanted = [mode for mode in wanted if "compile" not in mode]
    return wanted


class Work:
    """What is timed: training steps, features by the FID network, or a direction of the VAE."""

    def __init__(self, args, direction=None):
        self.batch, self.flop, self.row = args.batch, None, ""  # row: a word of the name of ditbench's row
        self.job = {"batch": args.batch, "steps": args.steps}
        self.ditbench = ["--batch", str(args.batch), "--repeats", str(args.steps)]
        if direction:
            self.name, self.batch, self.row = f"VAE {direction}", 1, direction
            self.job |= {"kind": "vae", "direction": direction, "side": 32 if args.quick else IMAGE_SIDE}
            self.ditbench = ["vae", *self.ditbench[2:], *(["--quick"] if args.quick else [])]
        elif args.inception:
            self.name, self.job["kind"] = "FID Inception", "inception"
            self.ditbench = ["inception"] + self.ditbench
        else:
            self.name, width, depth, _, patch = parse_model(args.model)
            self.job |= {"kind": "step", "model": self.name}
            # What dit_*.yaml have: eager PyTorch keeps all activations, too.
            self.ditbench = ["step", "--model", self.name, "--recompute", "auto"] + self.ditbench
            self.flop = 6 * forward_macs(width, depth, patch)  # of one image


def work_rows(args, work, precision, threads):
    """Turns of one precision and number of threads; one dictionary a contender."""
    names = modes(args.modes) + (["ditrain"] if args.against else [])
    seconds, rss, peak, details = {}, {}, args.peak.get(precision, 0), {}
    for _ in range(args.rounds if args.against else 1):
        for name in list(names):
            try:
                if name == "ditrain":
                    report = run_ditbench(args.against, work.ditbench + ["--threads", str(threads), "--precision",
                                                                         precision])
                    row = next(row for row in report["rows"] if work.row in row["name"])
                    seconds.setdefault(name, []).append(row["median_s"])
                    rss[name], details[name] = row["peak_rss_bytes"], report["commit"]
                    peak = max(peak, row["limit"])
                else:
                    result = run_torch(work.job | {"mode": name, "precision": precision, "threads": threads})
                    seconds.setdefault(name, []).append(statistics.median(result["seconds"]))
                    rss[name] = result["peak_rss_bytes"]
                    details[name] = result["torch"] + (f" {result['adamw']} AdamW" if "adamw" in result else "")
                    work.flop = work.flop or 2 * result["macs"]
            except Failed as error:
                print(f"{name} {precision} {threads} thread(s) is left out: {error}")
                names.remove(name)
                seconds.pop(name, None)
    rows = []
    for name, values in seconds.items():
        median = statistics.median(values)
        gflops = 1e-9 * (work.flop or 0) * work.batch / median
        rows.append({"name": name, "work": work.name, "dtype": precision, "threads": threads, "batch": work.batch,
                     "median_s": median, "images_per_second": work.batch / median, "gflops": gflops,
                     "mfu": gflops / peak if peak else None, "peak_rss_bytes": rss[name], "details": details[name]})
    return rows


def print_row(row):
    mfu = f"{100 * row['mfu']:6.1f} %" if row["mfu"] else "       -"
    print(f"{row['name']:<23}{row['dtype']:>5}{row['threads']:>9}{row['batch']:>7}{row['median_s']:>11.3f}"
          f"{row['images_per_second']:>9.2f}{row['gflops']:>10.1f}{mfu}{row['peak_rss_bytes'] / 2**30:>9.2f}  "
          f"{row['details']}", flush=True)


def bench_work(args, work):
    rows = []
    print(work.name)
    print(f"{'':<23}{'type':>5}{'threads':>9}{'batch':>7}{'median s':>11}{'img/s':>9}{'GFLOP/s':>10}{'MFU':>8}"
          f"{'RSS GiB':>9}", flush=True)
    for precision in args.precision:
        of_precision = []
        for threads in args.threads:
            new = work_rows(args, work, precision, threads)
            for row in new:
                print_row(row)
            of_precision += new
        rows += of_precision
        ours = [row for row in of_precision if row["name"] == "ditrain"]
        theirs = [row for row in of_precision if row["name"] != "ditrain"]
        if ours and theirs:
            best, other = (max(group, key=lambda row: row["images_per_second"]) for group in (ours, theirs))
            print(f"{precision}: ditrain / best PyTorch ({other['name']}, {other['threads']} thread(s)): "
                  f"{best['images_per_second'] / other['images_per_second']:.2f} x the images/s, "
                  f"{best['peak_rss_bytes'] / other['peak_rss_bytes']:.2f} x the memory")
    return rows


def bench_ops(args):
    threads, ours, theirs, report = args.threads[-1], {}, {}, None
    job = {"kind": "ops", "rows": 14592, "cols": 1152, "attention": [], "threads": threads, "steps": args.steps}
    for _ in range(args.rounds if args.against else 1):
        if args.against:
            report = run_ditbench(args.against, ["ops", "--threads", str(threads), "--repeats", str(args.steps)])
            for row in report["rows"]:
                ours.setdefault(row["name"], []).append(row["median_s"])
                if "rows" in row:
                    job["rows"], job["cols"] = row["rows"], row["cols"]
            job["attention"] = [row for row in report["rows"]
                                if row["name"].startswith("attention forward") and row["tokens"] <= 1024]
        for name, values in run_torch(job)["seconds"].items():
            theirs.setdefault(name, []).append(statistics.median(values))
    print(f"{job['rows']} x {job['cols']} f32, {threads} thread(s)")
    print(f"{'operator':<32}{'PyTorch ms':>12}{'ditrain ms':>12}{'ratio':>8}{'paper':>8}")
    rows = []
    for name, values in theirs.items():
        torch_s, own_s = statistics.median(values), statistics.median(ours[name]) if name in ours else None
        ratio = torch_s / own_s if own_s else None
        rows.append({"name": name, "pytorch_s": torch_s, "ditrain_s": own_s, "ratio": ratio, "paper": PAPER.get(name)})
        print(f"{name:<32}{1e3 * torch_s:>12.3f}{f'{1e3 * own_s:.3f}' if own_s else '-':>12}"
              f"{f'{ratio:.2f}' if ratio else '-':>8}{PAPER.get(name, '-'):>8}")
    return {"rows": rows, "threads": threads}


def numbers(text):
    return [int(word) for word in text.split(",")]


def default_threads():
    cores = len(os.sched_getaffinity(0))
    return sorted({1, cores} | {n for n in (2, 4, 8, 16, 32, 64) if n < cores})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="S", help="S, B, L, XL or DiT-S/2 ... DiT-XL/8")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", default="f32", help="f32, bf16 or both, separated by a comma")
    parser.add_argument("--threads", help="counts, separated by commas (default: 1, powers of two, all cores)")
    parser.add_argument("--modes", help="default: eager,compile; --vae, --inception: both also with channels_last")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a process, after two that warm up")
    parser.add_argument("--rounds", type=int, default=2, help="turns of every contender with --against")
    parser.add_argument("--peak-gflops", default="", help="FMA peak for MFU: f32[,bf16]; --against measures it")
    parser.add_argument("--against", metavar="DITBENCH", help="alternate with this program")
    parser.add_argument("--ops", action="store_true", help="operators instead of steps")
    parser.add_argument("--inception", action="store_true", help="the FID network instead of steps")
    parser.add_argument("--vae", action="store_true", help="encoding and decoding an image instead of steps")
    parser.add_argument("--quick", action="store_true", help="--vae: small images, to see that it works")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(json.loads(args.child))
    both_layouts = "eager,channels_last,compile,compile+channels_last"
    default_modes = both_layouts if args.vae or args.inception else "eager,compile"
    args.precision, args.modes = args.precision.split(","), (args.modes or default_modes).split(",")
    known_modes = both_layouts.split(",") if args.vae or args.inception else ["eager", "compile"]
    for mode in args.modes:
        if mode not in known_modes:
            parser.error(f"--modes {mode}: expected some of {', '.join(known_modes)}")
    if args.ops and args.precision != ["f32"]:
        parser.error("--ops compares operators in f32 only; leave --precision out")
    args.threads = numbers(args.threads) if args.threads else default_threads()
    args.peak = dict(zip(("f32", "bf16"), (float(word) for word in args.peak_gflops.split(",") if word)))
    try:
        if args.ops:
            report = bench_ops(args)
        else:
            works = [Work(args, direction) for direction in ("encode", "decode")] if args.vae else [Work(args)]
            report = {"rows": [row for work in works for row in bench_work(args, work)]}
    except Failed as error:
        sys.exit(f"bench_pytorch: error: {error}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
