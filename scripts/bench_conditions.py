#!/usr/bin/env python3
"""Trains a model that draws bands of scenes from other bands, and compares what it draws with simpler predictions.

    python3 scripts/bench_conditions.py --scenes DIR --predict B5,B6,B7,B8,B8A --given B4,B3,B2 --out OUT \\
        [--held-out PART,PART | --every 5] [--steps 2000] [--threads 1] [--set KEY=VALUE]... [--bin build/release/bin]

Needs numpy and rasterio. One scene of --every, or those whose names contain a PART, are held out: their root mean square
errors are printed per band, in digital numbers, for

    band mean     the mean of the band in the scenes of training
    regression    linear least squares of the given bands, per pixel, over the scenes of training
    one step      the model's prediction from pure noise: its mean over all bands that fit the given ones
    draws' mean   the mean of --num samples
    one draw      a sample; where the given bands leave a spread s, one draw is off by s and a mean is not

Then, of scenes larger than a tile, the mean step between neighbouring pixels where one tile begins or ends, divided by
that elsewhere: of the drawn bands over the same ratio of the true ones (1: tiles leave no border).
"""
import argparse
import pathlib
import subprocess

import numpy as np
import rasterio


def run(*command):
    print("$ " + " ".join(map(str, command)), flush=True)
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def bands(path, names):
    """The bands of a raster by name: [bands, rows, columns] f64."""
    with rasterio.open(path) as raster:
        return np.stack([raster.read(raster.descriptions.index(name) + 1).astype(np.float64) for name in names])


def regression(scenes, given, predicted):
    """Coefficients [given + 1, predicted] of least squares with a constant."""
    xx = xy = 0
    for path in scenes:
        x = bands(path, given).reshape(len(given), -1)
        x = np.vstack([x, np.ones(x.shape[1])])
        xx, xy = xx + x @ x.T, xy + x @ bands(path, predicted).reshape(len(predicted), -1).T
    return np.linalg.solve(xx, xy)


def borders(size, tile):
    """Pixels before which a tile of ditsample --condition begins or ends."""
    begins = list(range(0, size - tile, max(1, tile // 2 - 1))) + [size - tile]
    return sorted({at for b in begins for at in (b, b + tile) if 0 < at < size})


def border_ratio(image, tile):
    """Mean step across borders of tiles, divided by the mean step elsewhere."""
    at = elsewhere = count_at = count_elsewhere = 0
    for axis in (1, 2):
        steps = np.abs(np.diff(image, axis=axis)).mean(axis=(0, 3 - axis))
        chosen = np.zeros(len(steps), bool)
        chosen[[b - 1 for b in borders(image.shape[axis], tile)]] = True
        at, count_at = at + steps[chosen].sum(), count_at + chosen.sum()
        elsewhere, count_elsewhere = elsewhere + steps[~chosen].sum(), count_elsewhere + (~chosen).sum()
    return (at / count_at) / (elsewhere / count_elsewhere)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=pathlib.Path, required=True)
    parser.add_argument("--predict", required=True)
    parser.add_argument("--given", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--held-out")
    parser.add_argument("--tile", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--num", type=int, default=8)
    parser.add_argument("--sampling-steps", type=int, default=20)
    parser.add_argument("--config", default="configs/sentinel2_small.yaml")
    parser.add_argument("--threads", default="auto")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    args = parser.parse_args()
    predicted, given = args.predict.split(","), args.given.split(",")

    scenes = sorted(args.scenes.rglob("*.tif"))
    if args.held_out:
        held = [s for s in scenes if any(part in str(s) for part in args.held_out.split(","))]
    else:
        held = scenes[:: args.every]
    train = [s for s in scenes if s not in held]
    folder = args.out / "scenes"
    for scene in train:
        link = folder / scene.relative_to(args.scenes)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(scene.resolve())
    tiles, model = args.out / "tiles", args.out / "run"
    run(args.bin / "ditdata", "make", "--from", folder, "--tile", args.tile, "--out", tiles)
    settings = {"data.path": tiles, "data.bands": f"[{args.predict}]", "data.condition": f"[{args.given}]",
                "model.in_channels": len(predicted), "model.input_size": args.tile, "model.num_classes": 0,
                "train.steps": args.steps, "parallel.threads": args.threads, "sample.cfg_scale": 1,
                "eval.fid_every_steps": 0, "sample.every_steps": 0}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run(args.bin / "ditrain", "--config", args.config, *flags, *[w for s in args.set for w in ("--set", s)], "--out", model,
        "--resume", "auto")

    def draw(scene, name, num, steps):
        out = args.out / name / scene.relative_to(args.scenes).with_suffix("")
        run(args.bin / "ditsample", "--checkpoint", model, "--condition", scene, "--num", num, "--steps", steps, "--out", out,
            *(["--threads", args.threads] if args.threads != "auto" else []))
        return [bands(path, predicted) for path in sorted(out.glob("*.tif"))]

    mean = np.mean([bands(s, predicted).mean(axis=(1, 2)) for s in train], axis=0)
    weights = regression(train, given, predicted)
    squares = {name: [] for name in ("band mean", "regression", "one step", "draws' mean", "one draw")}
    ratios = []
    for scene in held:
        truth, x = bands(scene, predicted), bands(scene, given)
        linear = np.tensordot(weights.T, np.concatenate([x, np.ones((1, *x.shape[1:]))]), 1)
        draws = draw(scene, "drawn", args.num, args.sampling_steps)
        means = [mean[:, None, None], linear, draw(scene, "one_step", 1, 1)[0], np.mean(draws, axis=0), draws[0]]
        for name, image in zip(squares, means):
            squares[name].append(((image - truth) ** 2).mean(axis=(1, 2)))
        if min(truth.shape[1:]) > 2 * args.tile:
            ratios.append((scene.name, border_ratio(draws[0], args.tile), border_ratio(truth, args.tile)))
    print(f"root mean square errors, {len(held)} scenes held out, {len(train)} for training, {args.steps} steps")
    print("".join([f"{'':14}"] + [f"{b:>9}" for b in predicted + ["all"]]))
    for name, values in squares.items():
        per_band = np.mean(values, axis=0)
        print("".join([f"{name:14}"] + [f"{v:9.1f}" for v in np.sqrt(np.append(per_band, per_band.mean()))]))
    for name, drawn, true in ratios:
        print(f"steps at borders of tiles over those elsewhere, {name}: drawn {drawn:.3f}, true {true:.3f}, ratio {drawn / true:.3f}")


if __name__ == "__main__":
    main()
