"""d_max and both sides of Proposition 1 at the size of iNaturalist 2018: time and memory, against a loop over samples.

    python benchmarks/diagnostics.py            # 437,513 × 256 in 8,142 long-tailed classes
    python benchmarks/diagnostics.py --small    # a tenth of it

Memory is the peak resident size above that with the data loaded. The loop is given its class members for free (no
search for them) and is measured on a spread of samples; blocks and loop take turns on the same classes, so that the
ratio is fair on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time

import numpy as np
import torch

from longtail.evaluate import diagnostics, theory


def profile(classes: int, total: int) -> np.ndarray:
    """Class sizes 1000…2, falling exponentially, adding up to the total."""
    low, high = 1e-6, 50.0
    for _ in range(100):
        bend = (low + high) / 2
        n = np.maximum(2, 1000 * np.exp(-bend * np.linspace(0, 1, classes))).astype(int)
        low, high = (bend, high) if n.sum() > total else (low, bend)
    n[0] += total - n.sum()
    return n


def peak_mb() -> float:
    """Peak resident size in MB: Linux counts in kB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def loop_d_max(x: torch.Tensor, members: torch.Tensor, i: int) -> float:
    return float((x[members] - x[i]).square().sum(1).max().sqrt())


def loop_pull(x: torch.Tensor, members: torch.Tensor, i: int, alpha: float) -> float:
    others = members[members != i]
    d = (x[others].double() - x[i].double()).square().sum(1)
    return float(torch.logsumexp(torch.cat([d - alpha, d.new_zeros(1)]), 0))


def interleaved(x: torch.Tensor, y: torch.Tensor, alpha: torch.Tensor, rounds: int, each: int) -> dict[str, float]:
    """Seconds a sample, in blocks and in the loop, on the same few hundred classes in turn."""
    order = y.argsort(stable=True)
    sizes = torch.bincount(y)
    members = order.split(sizes.tolist())
    spent = dict.fromkeys(("d_max blocks", "d_max loop", "prop1 blocks", "prop1 loop"), 0.0)
    samples = {"blocks": 0, "loop": 0}
    for r in range(rounds):
        chosen = range(r, len(members), rounds * 4)
        part = torch.cat([members[c] for c in chosen])
        px, py = x[part], torch.repeat_interleave(torch.arange(len(chosen)), sizes[list(chosen)])
        pa = alpha[list(chosen)]
        local = py.argsort(stable=True).split(torch.bincount(py).tolist())
        start = time.perf_counter()
        d = diagnostics.max_intra_distance(px, py)
        spent["d_max blocks"] += time.perf_counter() - start
        start = time.perf_counter()
        soft, _ = theory.pull_values(px, py, pa)
        diagnostics.scatter(px, py, len(chosen))
        spent["prop1 blocks"] += time.perf_counter() - start
        samples["blocks"] += len(part)
        some = np.linspace(0, len(part) - 1, each).astype(int).tolist()
        start = time.perf_counter()
        naive = [loop_d_max(px, local[int(py[i])], i) for i in some]
        spent["d_max loop"] += time.perf_counter() - start
        start = time.perf_counter()
        pulls = [loop_pull(px, local[int(py[i])], i, float(pa[py[i]])) for i in some]
        spent["prop1 loop"] += time.perf_counter() - start
        samples["loop"] += each
        np.testing.assert_allclose(d[some], naive, rtol=1e-4)
        np.testing.assert_allclose(soft[some], pulls, rtol=1e-6)
    return {name: s / samples[name.split()[1]] for name, s in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the samples and classes")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--json", help="write the results here too")
    args = parser.parse_args()
    classes, total = (814, 43_751) if args.small else (8_142, 437_513)
    n = torch.from_numpy(profile(classes, total))
    g = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(classes), n)[torch.randperm(total, generator=g)]
    x = torch.randn(total, args.dim, generator=g)
    centres = torch.randn(classes, args.dim, generator=g)
    for rows in torch.arange(total).split(10_000):  # in place and in parts: the peak before must be that of the data
        x[rows] = 0.3 * x[rows] + centres[y[rows]]
    alpha = n.double().sqrt()
    diagnostics.max_intra_distance(x[:2000], y[:2000])  # load kernels before measuring
    result: dict[str, object] = {
        "samples": total,
        "classes": classes,
        "dimensions": args.dim,
        "largest and smallest class": [int(n.max()), int(n.min())],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "data_mb": round(x.numel() * 4 / 2**20),
    }
    before = peak_mb()
    start = time.perf_counter()
    d = diagnostics.max_intra_distance(x, y)
    result["d_max_seconds"] = round(time.perf_counter() - start, 2)
    result["d_max_mb_above_data"] = round(peak_mb() - before)
    start = time.perf_counter()
    one = theory.proposition1(x, y, alpha)
    result["proposition1_seconds"] = round(time.perf_counter() - start, 2)
    result["both_mb_above_data"] = round(peak_mb() - before)
    result["proposition1_holds"] = f"{int(one.holds.sum())} of {len(one.classes)}"
    result["mean_d_max"] = round(float(d.mean()), 4)
    each = interleaved(x, y, alpha, rounds=4, each=250)
    result["microseconds_a_sample"] = {name: round(1e6 * s, 1) for name, s in each.items()}
    for name in ("d_max", "prop1"):
        result[f"{name}_times_faster"] = round(each[f"{name} loop"] / each[f"{name} blocks"], 1)
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
