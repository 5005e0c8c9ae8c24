"""Does the pull reach the tail? Variants of ELM's positives, tuned alike on validation data, then run on fresh seeds.

    python benchmarks/ablation.py digits-lt --seeds 10
    python benchmarks/ablation.py data/cifar100lt-features.npz --recipe features-mlp --seeds 5 --tuning-seeds 1

Each variant's λ and α are chosen by balanced validation accuracy over the same grid with the same seeds; the test data
is looked at only for the settings chosen. Runs go to the git-ignored ``runs/ablation`` (finished ones are reused, so
the command may be interrupted and repeated), their essence to ``results/ablation/NAME.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from longtail.engine.pool import Outcome, cores, run_all
from longtail.engine.settings import Job

ALPHAS = ("prior", "count^0.5", "count")
LAMBDAS = (0.0001, 0.001, 0.01, 0.1)
ELM_GRID = [{"lam": lam, "alpha": alpha} for lam, alpha in product(LAMBDAS, ALPHAS)]
RELATIVE_GRID = [{"lam": lam, "alpha": alpha} for lam, alpha in product((0.003, 0.01, 0.03, 0.1), ("0", "2", "4"))]

VARIANTS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "no pull": ("logadj", {}, [{}]),
    "batch": ("elm", {}, ELM_GRID),
    "batch + memory": ("elm", {"memory": 16}, ELM_GRID),
    "pairs": ("elm", {"sampler": "pairs"}, ELM_GRID),
    "pairs + memory": ("elm", {"sampler": "pairs", "memory": 16}, ELM_GRID),
    "memory, scaled": ("elm", {"memory": 16, "scaled": True}, ELM_GRID),
    "relative, batch": ("elm-relative", {}, RELATIVE_GRID),
    "relative, memory": ("elm-relative", {"memory": 16}, RELATIVE_GRID),
}


def read(path: Path, name: str) -> Any:
    return json.loads((path / name).read_text())


def essence(path: Path) -> dict[str, Any]:
    """What the tables need of a run: its figures, and what made them."""
    summary, config = read(path, "summary.json"), read(path, "config.json")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    groups = {k: v["accuracy"] for k, v in summary["test"]["groups"].items()}
    diagnostics = summary["diagnostics"]
    return {
        "seed": config["seed"],
        "val": summary["val"]["balanced"],
        "balanced": summary["test"]["balanced"],
        "groups": groups,
        "test_variance": diagnostics["class_variance"]["by_group"]["test"],
        "intra_inter": diagnostics["intra_inter"],
        "alive": rows[-1]["alive"],
        "pull": rows[-1]["parts"].get("pull"),
        "logit": rows[-1]["parts"].get("logit"),
    }


def jobs_of(name: str, args: argparse.Namespace, settings: Iterable[dict[str, Any]], seeds: Iterable[int]) -> list[Job]:
    method, fixed, _ = VARIANTS[name]
    common = {"data": args.data, "recipe": args.recipe, "epochs": args.epochs, "under": "runs/ablation", "resume": True}
    return [Job(method, seed=seed, knobs={**fixed, **knobs}, **common) for knobs in settings for seed in seeds]


def run(jobs: list[Job], label: str) -> list[Outcome]:
    done = 0

    def on_done(index: int, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        print(f"{label} [{done}/{len(jobs)}] {outcome.job.knobs} seed {outcome.job.seed} {outcome.error}", flush=True)

    return run_all(jobs, cores(), on_done=on_done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--recipe")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    args = parser.parse_args()

    out = Path("results/ablation") / f"{Path(args.data).stem}.json"
    result: dict[str, Any] = read(out.parent, out.name) if out.exists() else {"data": args.data, "variants": {}}
    for name in args.variants:
        method, fixed, grid = VARIANTS[name]
        # Tuning seeds are other seeds than those reported
        tuning_seeds = [1000 + s for s in range(args.tuning_seeds)]
        tuned = run(jobs_of(name, args, grid, tuning_seeds), f"{name}: tuning")
        scores: list[dict[str, Any]] = []
        for i, knobs in enumerate(grid):
            paths = [o.path for o in tuned[i * len(tuning_seeds) : (i + 1) * len(tuning_seeds)]]
            failed = any(p is None for p in paths)  # such as a loss that is not finite
            val = None if failed else statistics.fmean(essence(p)["val"] for p in paths if p is not None)
            scores.append({**knobs, "val": val})
        best = max((s for s in scores if s["val"] is not None), key=lambda s: s["val"])
        chosen = {k: v for k, v in best.items() if k != "val"}
        final = run(jobs_of(name, args, [chosen], range(args.seeds)), f"{name}: {chosen}")
        runs = [essence(o.path) for o in final if o.path is not None]
        first = final[0].path
        assert first is not None
        config, environment = read(first, "config.json"), read(first, "environment.json")
        result["variants"][name] = {
            "method": method, "knobs": {**fixed, **chosen}, "tuning": scores, "runs": runs,
            "recipe": config["recipe"], "fingerprint": config["data"]["fingerprint"],
            "git": environment["git"], "machine": environment["machine"], "torch": environment["torch"],
        }  # fmt: skip
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        mean = statistics.fmean(r["balanced"] for r in runs)
        print(f"== {name}: {chosen}, balanced {100 * mean:.2f} % over {len(runs)} seeds", flush=True)


if __name__ == "__main__":
    main()
