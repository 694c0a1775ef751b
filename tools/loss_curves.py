#!/usr/bin/env python3
"""Trains the same models in bf16 and under each low-precision recipe, or on two devices, with several seeds and compares their losses.

    tools/loss_curves.py [--bin build/cuda/bin/moebius] [--genome FILE] [--device cuda|cpu] [--steps N] [--seeds 3] [--jobs 4]
                         [--models l0,wide] [--precisions fp32,bf16,block,current,delayed,mxfp8] [--out bench/results/curves]
                         [--name NAME] [--beside FILE]

Writes OUT/MODEL.json, or OUT/NAME.json (each run's training loss by steps and its held-out loss, and per precision whether the mean
of the held-out losses lies within the spread of the seeds of the first), and a plot beside it. Held-out loss is the mean over all of
the held-out part. --beside takes the runs of an earlier file, of the same model on another device, as the first.
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What differs from L0_sanity.
MODELS = {
    "l0": {},
    "wide": {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 16},
}
RECIPES = {
    "fp32": None,
    "bf16": None,
    "block": "Float8BlockScaling",
    "current": "Float8CurrentScaling",
    "delayed": "DelayedScaling",
    "mxfp8": "MXFP8BlockScaling",
}
COLOURS = {"fp32": "#999999", "bf16": "#333333", "block": "#1f77b4", "current": "#2ca02c", "delayed": "#ff7f0e", "mxfp8": "#d62728"}


def train(options, model, precision, seed):
    """The run's line of MODEL.json."""
    recipe = RECIPES[precision]
    with tempfile.TemporaryDirectory() as folder:
        command = [options.bin, "train", f"--config-path={ROOT / 'configs'}", "--config-name=L0_sanity", f"dataset.path={options.genome}"]
        command += [f"device={options.device}", f"dtype={'fp32' if precision == 'fp32' else 'bf16'}", f"seed={seed}", f"num_train_steps={options.steps}", f"logger.run_dir={folder}/run"]
        command += ["logger.frequency=10", "checkpoint.save_final_model=false", f"checkpoint.save_every_n_steps={options.steps}"]
        command += [f"validation.eval_interval={options.steps}", "validation.num_batches=40", "expert_ffn_mode=fused_grouped_mlp"]
        command += [f"config_kwargs.{key}={value}" for key, value in MODELS[model].items()]
        if recipe:
            command += ["fp8_config.enabled=true", f"fp8_config.fp8_recipe={recipe}"]
        command += options.more
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{model}, {precision}, seed {seed}: exit {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [[line["step"], round(line["loss"], 5)] for line in lines if "loss" in line]
    held_out = [line for line in lines if "val_loss" in line]
    return {"model": model, "precision": precision, "recipe": recipe, "device": options.device, "seed": seed, "steps": options.steps, "held_out": held_out[-1]["val_loss"], "curve": curve}


def label(run, runs):
    """The precision, with the device where the runs are of several."""
    return run["precision"] if len({r["device"] for r in runs}) == 1 else f"{run['precision']} on {run['device']}"


def compare(runs):
    """{precision: mean and least to most of the held-out loss; its distance from the mean of the first, whether within that one's spread}"""
    by = {}
    for run in runs:
        by.setdefault(label(run, runs), []).append(run["held_out"])
    result = {}
    first = next(iter(by))
    base = by[first]
    for precision, losses in by.items():
        row = {"mean": round(statistics.mean(losses), 5), "least": round(min(losses), 5), "most": round(max(losses), 5), "seeds": len(losses)}
        if precision != first:
            row["over_first"] = round(statistics.mean(losses) - statistics.mean(base), 5)
            spread = max(base) - min(base)
            row["spread_of_first"] = round(spread, 5)
            row["within"] = abs(row["over_first"]) <= spread
        result[precision] = row
    return result


def smooth(curve, half=5):
    """Means over neighbours, so that five curves can be told apart."""
    values = [loss for _, loss in curve]
    return [(step, statistics.mean(values[max(0, i - half) : i + half + 1])) for i, (step, _) in enumerate(curve)]


def plot(runs, title):
    """One curve a run; colours are precisions. SVG text."""
    width, height, left, top, right, bottom = 860, 480, 70, 40, 30, 50
    colours = {label(run, runs): COLOURS[run["precision"]] for run in runs}
    curves = [(label(run, runs), smooth(run["curve"])) for run in runs]
    steps = max(step for _, curve in curves for step, _ in curve)
    # The first steps fall from ln(vocabulary): what is worth seeing comes after.
    shown = sorted(loss for _, curve in curves for step, loss in curve if step >= steps / 20)
    low, high = shown[0], shown[-1]
    low, high = low - 0.05 * (high - low) - 1e-3, high + 0.02 * (high - low) + 1e-3
    x = lambda step: left + (width - left - right) * step / steps
    y = lambda loss: top + (height - top - bottom) * (high - min(loss, high)) / (high - low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="22" font-size="15">{title}</text>')
    unit = 10 ** math.floor(math.log10((high - low) / 4))
    unit *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (unit * factor) <= 6)
    tick = math.ceil(low / unit) * unit
    while tick <= high:
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
        tick += unit
    for i in range(6):
        step = steps * i // 5
        parts.append(f'<text x="{x(step):.1f}" y="{height - bottom + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">step</text>')
    parts.append(f'<text x="16" y="{(top + height - bottom) / 2}" text-anchor="middle" transform="rotate(-90 16 {(top + height - bottom) / 2})">training loss, nats a base</text>')
    for precision, curve in curves:
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[precision]}" stroke-width="1.2" opacity="0.8"/>')
    for i, precision in enumerate(dict.fromkeys(precision for precision, _ in curves)):
        at = top + 16 * (i + 1)
        parts.append(f'<line x1="{width - 150}" x2="{width - 125}" y1="{at}" y2="{at}" stroke="{colours[precision]}" stroke-width="3"/>')
        parts.append(f'<text x="{width - 118}" y="{at + 4}">{RECIPES.get(precision) or precision}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(options, model, runs, version):
    """MODEL.json and MODEL.svg of the runs that have ended; returns the summary."""
    own = sorted((run for run in runs if run["model"] == model), key=lambda run: (list(RECIPES).index(run["precision"]), run["seed"]))
    if options.beside:
        earlier = json.loads(options.beside.read_text(encoding="utf-8"))
        if earlier["steps"] != options.steps or earlier["runs"][0]["model"] != model:
            raise SystemExit(f"{options.beside}: {earlier['runs'][0]['model']}, {earlier['steps']} steps: not the same as here")
        own = [*earlier["runs"], *own]
        version = f"{version}; {earlier['program']}" if earlier["program"] != version else version
    summary = compare(own)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    head = {"model": {"config": "L0_sanity", **MODELS[model]}, "steps": options.steps, "device": ", ".join(dict.fromkeys(run["device"] for run in own)), "program": version, "date": date}
    body = ",\n".join(json.dumps(run) for run in own)
    text = json.dumps({**head, "held_out": summary})[:-1] + f', "runs": [\n{body}\n]}}\n'
    (options.out / f"{options.name or model}.json").write_text(text, encoding="utf-8")
    title = f"{model}: L0_sanity{'' if model == 'l0' else ', 4 layers, 512 wide, 16 experts'}, E. coli 536"
    (options.out / f"{options.name or model}.svg").write_text(plot(own, title), encoding="utf-8")
    return summary


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cuda/bin/moebius")
    parser.add_argument("--genome", type=pathlib.Path, default=ROOT / "build/data/NC_008253.fna.gz")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default=",".join(list(RECIPES)[1:]))
    parser.add_argument("--name", help="of the files that are written (one model)")
    parser.add_argument("--beside", type=pathlib.Path, help="an earlier file whose runs come first (one model)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/curves")
    parser.add_argument("more", nargs="*", help="key=value for every run")
    options = parser.parse_args()
    options.models, options.precisions = options.models.split(","), options.precisions.split(",")
    for given, known in ((options.models, MODELS), (options.precisions, RECIPES)):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"{unknown[0]} is not one of {', '.join(known)}")
    if (options.name or options.beside) and len(options.models) > 1:
        parser.error("--name and --beside are for one of --models")
    options.bin, options.genome = options.bin.resolve(), options.genome.resolve()
    return options


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([options.bin, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    jobs = [(model, precision, 42 + i) for model in options.models for i in range(options.seeds) for precision in options.precisions]
    runs, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(train, options, *job) for job in jobs]
        for done in concurrent.futures.as_completed(waiting):
            try:
                runs.append(done.result())
                run = runs[-1]
                print(f"curves: {run['model']}, {run['precision']}, seed {run['seed']}: held-out {run['held_out']:.5f}", flush=True)
                write(options, run["model"], runs, version)
            except (RuntimeError, OSError, ValueError, LookupError) as error:
                failures.append(str(error))
                print(f"curves: FAILED {error}", flush=True)
    for model in options.models:
        for precision, row in (write(options, model, runs, version) if any(run["model"] == model for run in runs) else {}).items():
            print(f"curves: {model}: {precision}: {row}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
