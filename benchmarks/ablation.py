"""Does the pull reach the tail? Variants of ELM's positives, tuned alike on validation data, then run on fresh seeds.

    python benchmarks/ablation.py digits-lt --seeds 10
    python benchmarks/ablation.py data/cifar100lt-features.npz --recipe features-mlp --seeds 5 --tuning-seeds 1
    python benchmarks/ablation.py cifar100-lt --untuned --recipe cifar-cpu --model resnet20 --epochs 12 --seeds 1
    python benchmarks/ablation.py --docs docs/ablation.md

Each variant's λ and α are chosen by balanced validation accuracy over the same grid with the same seeds; the test data
is looked at only for the settings chosen. The choices that a memory has are compared at the setting chosen for a memory
of 16. Networks on images take too long to tune: --untuned runs the settings written below.

Runs go to the git-ignored ``runs/ablation`` (finished ones are reused, so the command may be interrupted and repeated),
their essence to ``results/ablation/NAME.json``, from which the page is made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch

from longtail import methods, models
from longtail.data import load
from longtail.engine import recipe
from longtail.engine.job import Job
from longtail.engine.pool import Outcome, cores, run_all
from longtail.engine.train import Trainer

ALPHAS = ("prior", "count^0.5", "count")
LAMBDAS = (0.0001, 0.001, 0.01, 0.1)
RELATIVE_LAMBDAS = (0.003, 0.01, 0.03, 0.1)
ELM_GRID = [{"lam": lam, "alpha": alpha} for lam, alpha in product(LAMBDAS, ALPHAS)]
RELATIVE_GRID = [{"lam": lam, "alpha": alpha} for lam, alpha in product(RELATIVE_LAMBDAS, ("0", "2", "4"))]
MEMORY = "batch + memory"

Grid = list[dict[str, Any]]
Variants = dict[str, tuple[str, dict[str, Any], Grid]]

TUNED: Variants = {
    "no pull": ("logadj", {}, [{}]),
    "batch": ("elm", {}, ELM_GRID),
    MEMORY: ("elm", {"memory": 16}, ELM_GRID),
    "pairs": ("elm", {"sampler": "pairs"}, ELM_GRID),
    "pairs + memory": ("elm", {"sampler": "pairs", "memory": 16}, ELM_GRID),
    "memory, scaled": ("elm", {"memory": 16, "scaled": True}, ELM_GRID),
    "relative, batch": ("elm-relative", {}, RELATIVE_GRID),
    "relative, memory": ("elm-relative", {"memory": 16}, RELATIVE_GRID),
}
# At λ and α as tuned for a memory of 16
CHOICES: dict[str, dict[str, Any]] = {
    "memory of 4": {"memory": 4},
    "memory of 64": {"memory": 64},
    "memory of 16, forgets after 50 steps": {"memory": 16, "memory_age": 50},
    "memory of 16 for classes below 100": {"memory": 16, "memory_below": 100},
    "memory of 16 from averaged weights": {"memory": 16, "memory_ema": 0.99},
}
# Untuned: λ is the paper's, or a tenth of it
IMAGES: Variants = {
    "no pull": ("logadj", {}, [{}]),
    "batch, λ .01": ("elm", {}, [{"lam": 0.01}]),
    "memory, λ .01": ("elm", {"memory": 16}, [{"lam": 0.01}]),
    "batch, λ .001": ("elm", {}, [{"lam": 0.001}]),
    "memory, λ .001": ("elm", {"memory": 16}, [{"lam": 0.001}]),
    "relative, λ .01": ("elm-relative", {}, [{"lam": 0.01}]),
    "relative from half-way, λ .01": ("elm-relative", {"start": 0.5}, [{"lam": 0.01}]),
    "relative from half-way, λ .1": ("elm-relative", {"start": 0.5}, [{"lam": 0.1}]),
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def essence(path: Path) -> dict[str, Any]:
    """What the tables need of a run: its figures, and what made them."""
    summary, config = read(path / "summary.json"), read(path / "config.json")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    diagnostics = summary["diagnostics"]
    return {
        "seed": config["seed"],
        "val": summary["val"]["balanced"],
        "balanced": summary["test"]["balanced"],
        "groups": {k: v["accuracy"] for k, v in summary["test"]["groups"].items()},
        "test_variance": diagnostics["class_variance"]["by_group"]["test"],
        "intra_inter": diagnostics["intra_inter"],
        "alive": rows[-1]["alive"],
        "pull": rows[-1]["parts"].get("pull"),
        "logit": rows[-1]["parts"].get("logit"),
    }


class Ablation:
    """One data set's variants and what came of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.path = Path("results/ablation") / f"{Path(args.data).stem}.json"
        self.result: dict[str, Any] = {"variants": {}}
        if self.path.exists():
            self.result = read(self.path)
        data = Path(args.data)
        self.result["data"] = data.name if data.suffix else args.data

    def run(self, name: str, method: str, settings: Grid, seeds: Iterable[int]) -> list[Outcome]:
        common: dict[str, Any] = {
            "data": self.args.data, "recipe": self.args.recipe, "model": self.args.model, "epochs": self.args.epochs,
            "under": "runs/ablation", "resume": True,
        }  # fmt: skip
        jobs = [Job(method, seed=seed, knobs=knobs, **common) for knobs in settings for seed in seeds]

        def on_done(index: int, outcome: Outcome) -> None:
            print(f"  {name} {outcome.job.knobs} seed {outcome.job.seed} {outcome.error}", flush=True)

        return run_all(jobs, self.args.jobs or cores(), on_done=on_done)

    def tune(self, name: str, method: str, fixed: dict[str, Any], grid: Grid) -> tuple[dict[str, Any], Grid]:
        """The grid's best by validation accuracy, with seeds that are never reported, and all that was tried."""
        if len(grid) == 1:
            return grid[0], []
        seeds = [1000 + s for s in range(self.args.tuning_seeds)]
        done = self.run(f"{name}: tuning", method, [{**fixed, **knobs} for knobs in grid], seeds)
        tried: Grid = []
        for i, knobs in enumerate(grid):
            paths = [o.path for o in done[i * len(seeds) : (i + 1) * len(seeds)]]
            failed = any(p is None for p in paths)  # such as a loss that is not finite
            tried.append({**knobs, "val": None if failed else statistics.fmean(essence(p)["val"] for p in paths if p)})
        best = max((t for t in tried if t["val"] is not None), key=lambda t: t["val"])
        return {k: v for k, v in best.items() if k != "val"}, tried

    def variant(self, name: str, method: str, fixed: dict[str, Any], grid: Grid) -> None:
        chosen, tried = self.tune(name, method, fixed, grid)
        done = self.run(name, method, [{**fixed, **chosen}], range(self.args.seeds))
        paths = [o.path for o in done if o.path is not None]
        runs = [essence(p) for p in paths]
        config, environment = read(paths[0] / "config.json"), read(paths[0] / "environment.json")
        self.result["variants"][name] = {
            "method": method, "knobs": {**fixed, **chosen}, "tuning": tried, "runs": runs,
            "model": config["model"], "recipe": config["recipe"], "fingerprint": config["data"]["fingerprint"],
            "git": environment["git"], "machine": environment["machine"], "torch": environment["torch"],
        }  # fmt: skip
        self.write()
        mean = statistics.fmean(r["balanced"] for r in runs)
        print(f"== {name}: {chosen}, balanced {100 * mean:.2f} % over {len(runs)} seeds", flush=True)

    def cost(self, rounds: int = 5, steps: int = 40) -> None:
        """Processor time of a step of every variant against one without a pull, in turn, after two epochs of steps."""
        torch.set_num_threads(1)
        data = load(self.args.data)
        how = recipe.get(self.args.recipe or recipe.default_for(self.args.data, data.kind).name)
        if data.kind == "images":
            rounds, steps = 3, 2
        sides = {}
        for name, found in self.result["variants"].items():
            plan = methods.build(found["method"], data.counts, data=self.args.data, **found["knobs"])
            options = how.model_options if self.args.model in (None, how.model) else {}
            model = models.build(self.args.model or how.model, data.num_classes, data.input_shape, **options)
            trainer = Trainer(model, plan, data.train, how)
            for stage in range(len(plan.stages)):
                trainer.enter(stage)
            if (memory := trainer.objective.memory) is not None and data.kind == "images":
                memory.push(torch.randn(len(data.train), 64), data.train.labels, torch.arange(len(data.train)))
            batches = (b for epoch in range(10**6) for b in trainer.loader.epoch(epoch))
            sides[name] = (trainer, batches)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for n in range(rounds + 1):
            for name, (trainer, batches) in sides.items():
                begin = time.process_time()
                for _ in range(steps):
                    trainer.step(next(batches), 0.01, (0, 0, 0))
                if n:
                    times[name].append((time.process_time() - begin) / steps)
        base = statistics.median(times["no pull"])
        for name, found in self.result["variants"].items():
            found["cost"] = round(statistics.median(times[name]) / base, 3)
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.result, indent=1) + "\n")

    def all(self) -> None:
        variants = IMAGES if self.args.untuned else TUNED
        chosen = self.args.variants or [*variants, *({} if self.args.untuned else CHOICES)]
        for name in chosen:
            if name in CHOICES:
                tuned = self.result["variants"][MEMORY]["knobs"]
                self.variant(name, "elm", {k: tuned[k] for k in ("lam", "alpha")} | CHOICES[name], [{}])
            else:
                self.variant(name, *variants[name])
        self.cost()


# -- the page ---------------------------------------------------------------------------------------------------------


def cell(values: Iterable[float | None], factor: float = 100.0, digits: int = 1) -> str:
    """Mean ± standard deviation, without the latter for one value."""
    numbers = [factor * v for v in values if v is not None]
    if not numbers:
        return "–"
    text = f"{statistics.fmean(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ± {statistics.stdev(numbers):.{digits}f}"


def table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def settings(knobs: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in knobs.items()) or "–"


def paired(runs: Grid, base: Grid) -> str:
    """The difference in balanced accuracy, seed by seed: points, with the standard error of its mean."""
    of = {r["seed"]: r["balanced"] for r in base}
    found = [100 * (r["balanced"] - of[r["seed"]]) for r in runs if r["seed"] in of]
    if len(found) < 2:
        return f"{found[0]:+.1f}" if found else "–"
    return f"{statistics.fmean(found):+.2f} ± {statistics.stdev(found) / len(found) ** 0.5:.2f}"


def section(result: dict[str, Any]) -> str:
    variants = result["variants"]
    first = variants["no pull"]
    how, machine = first["recipe"], first["machine"]
    rows = []
    for name, v in variants.items():
        runs = v["runs"]
        alive = [(r["alive"] or {}).get("tail") for r in runs]
        rows.append([
            name, settings(v["knobs"]), cell(r["balanced"] for r in runs), paired(runs, first["runs"]),
            *(cell(r["groups"].get(g) for r in runs) for g in ("head", "torso", "tail")),
            cell((r["test_variance"].get("tail") for r in runs), 1.0, 3),
            cell((r["intra_inter"]["test"] for r in runs), 1.0, 2),
            cell(alive) if any(a is not None for a in alive) else "–",
            f"{v['cost']:.2f}" if "cost" in v else "not measured",
        ])  # fmt: skip
    head = [
        "variant", "settings", "balanced", "against no pull", "head", "torso", "tail", "tail variance, test",
        "intra/inter, test", "tail alive (%)", "cost a step",
    ]  # fmt: skip
    planned = IMAGES if not any(v["tuning"] for v in variants.values()) else {**TUNED, **CHOICES}
    rows += [[name, *["not run"] * (len(head) - 1)] for name in planned if name not in variants]
    git = ", ".join(sorted({v["git"][:10] for v in variants.values()}))
    lines = [
        f"## {result['data']}",
        f"Recipe `{how['name']}`, {how['epochs']} epochs, batch {how['batch_size']}, model `{how['model']}`; "
        f"{len(first['runs'])} seed{'s' if len(first['runs']) > 1 else ''}; revision {git}; "
        f"{machine['cores']} cores of {machine['cpu']}, torch {first['torch']}.",
        table(head, rows),
    ]
    tuned = {n: v for n, v in variants.items() if v["tuning"]}
    if tuned:
        lines.append("### By λ, on validation data")
        for method, lambdas in (("elm", LAMBDAS), ("elm-relative", RELATIVE_LAMBDAS)):
            rows = []
            for name, v in tuned.items():
                if v["method"] == method:
                    best = (
                        [t["val"] for t in v["tuning"] if t["lam"] == lam and t["val"] is not None] for lam in lambdas
                    )
                    rows.append([name, *(f"{100 * max(b):.1f}" if b else "not finite" for b in best)])
            if rows:
                lines.append(table([f"`{method}`", *(f"λ = {lam:g}" for lam in lambdas)], rows))
        lines.append("Balanced validation accuracy in per cent at the best α of each λ, mean over the tuning seeds.")
    return "\n\n".join(lines)


def at_lambda(result: dict[str, Any], method: str, lam: float, alpha: str) -> str:
    """Balanced validation accuracy at one λ with the batch's positives, from the tuning or, untuned, from the runs."""
    for v in result["variants"].values():
        if v["method"] != method or not set(v["knobs"]) <= {"lam", "alpha"}:
            continue
        untuned = {"alpha": alpha, **v["knobs"], "val": statistics.fmean(r["val"] for r in v["runs"])}
        for tried in v["tuning"] or [untuned]:
            if (tried["lam"], tried["alpha"]) == (lam, alpha):
                return "not finite" if tried["val"] is None else f"{100 * tried['val']:.1f}"
    return "not run"


def transfer(results: list[dict[str, Any]]) -> str:
    """One λ on all data sets, for the paper's form and for the relative one."""
    lines = ["## One λ for all data?"]
    for method, alpha, lambdas in (("elm", "count^0.5", LAMBDAS), ("elm-relative", "0", RELATIVE_LAMBDAS)):
        rows = []
        for r in results:
            without = cell((run["val"] for run in r["variants"]["no pull"]["runs"]), 100.0, 1)
            rows.append([r["data"], without, *(at_lambda(r, method, lam, alpha) for lam in lambdas)])
        lines.append(table([f"`{method}`, α = {alpha}", "no pull", *(f"λ = {lam:g}" for lam in lambdas)], rows))
    lines.append(
        "Balanced validation accuracy in per cent, positives from the batch. Figures of no pull are of the seeds "
        "reported below, the others of the tuning seeds; on images there is one seed, the same for all."
    )
    return "\n\n".join(lines)


def page(folder: Path) -> str:
    """docs/ablation.md, from results/ablation and the text beside it."""
    results = [read(p) for p in sorted(folder.glob("*.json"))]
    about = (folder / "README.md").read_text().strip()
    return "\n\n".join([about, transfer(results), *(section(r) for r in results)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--recipe")
    parser.add_argument("--model")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--jobs", type=int, help="runs at a time; one a core by default")
    parser.add_argument("--untuned", action="store_true", help="the settings for images, nothing tuned")
    parser.add_argument("--variants", nargs="*", help="some of them, by name")
    parser.add_argument("--cost", action="store_true", help="measure only what a step costs")
    parser.add_argument("--docs", type=Path, help="only write the page")
    args = parser.parse_args()
    if args.docs:
        args.docs.write_text(page(Path("results/ablation")))
    elif not args.data:
        parser.error("name the data, or --docs PAGE")
    elif args.cost:
        Ablation(args).cost()
    else:
        Ablation(args).all()


if __name__ == "__main__":
    main()
