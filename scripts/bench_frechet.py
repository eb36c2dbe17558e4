#!/usr/bin/env python3
"""Times the Frechet distance against scipy.linalg.sqrtm on the same statistics and the same cores, and compares values.

    python3 scripts/bench_frechet.py [--dims 2048] [--bin build/release/bin] [--repeats 3]

Needs numpy and scipy. The statistics are those of correlated random features, twice as many rows as dimensions. ditfid is
timed as a whole process, reading the files included; scipy without anything but the root of the product.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

import numpy as np
import scipy
import scipy.linalg


def statistics(rng, dims):
    """Features whose variances fall by a factor of 1,000, as those of images do, mixed by one rotation."""
    scale = 10 ** np.linspace(0, -1.5, dims)
    mix = np.linalg.qr(np.random.default_rng(7).standard_normal((dims, dims)))[0]
    x = (rng.standard_normal((2 * dims, dims)) * scale) @ mix + 0.1 * rng.random(dims)
    return x.mean(axis=0), np.cov(x, rowvar=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, default=2048)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    (mu1, sigma1), (mu2, sigma2) = statistics(rng, args.dims), statistics(rng, args.dims)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        np.savez(folder + "/1.npz", mu=mu1, sigma=sigma1)
        np.savez(folder + "/2.npz", mu=mu2, sigma=sigma2)
        command = [args.bin + "/ditfid", "--features", "pixels", "--real", folder + "/1.npz", "--generated",
                   folder + "/2.npz", "--json", folder + "/fid.json"]
        for _ in range(args.repeats):  # in turns, so that both meet the same machine
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            root = scipy.linalg.sqrtm(sigma1 @ sigma2)
            theirs.append(time.perf_counter() - start)
        with open(folder + "/fid.json") as file:
            value = json.load(file)["fid"]
    want = np.sum((mu1 - mu2) ** 2) + np.trace(sigma1) + np.trace(sigma2) - 2 * np.trace(root.real)
    print(f"{args.dims} dimensions, {len(os.sched_getaffinity(0))} cores, scipy {scipy.__version__}")
    print(f"ditfid {min(ours):.2f} s, scipy.linalg.sqrtm {min(theirs):.2f} s: {min(theirs) / min(ours):.2f} times as fast")
    print(f"values {value:.10g} and {want:.10g}: relative difference {abs(value - want) / abs(want):.1e}")


if __name__ == "__main__":
    main()
