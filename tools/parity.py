#!/usr/bin/env python3
"""Compares Moebius with Hugging Face transformers, from training to logits, and writes what came out as JSON.

usage: parity.py [--program build/bin/moebius] [--output bench/results/parity.json] [--work build/parity]

Called by tools/parity.sh (`make parity`), which brings torch, transformers, tokenizers, safetensors and numpy. For each
configuration in RUNS the program trains a few steps on a small generated FASTA; then, without any network,

  tokenizer    `tokenizers` and `transformers` read the written tokenizer and encode texts byte by byte as documented
  held-out     the held-out loss of the run equals transformers' loss of the written model on the same records, as
               tokenized by the written tokenizer
  forward      `moebius forward --gradients` on the written model equals transformers: logits, loss, auxiliary loss, router
               logits, chosen experts, every gradient; fp32 and bf16; each way to run the experts

and for each model in tests/golden the same as `forward`, and that the committed values are what the installed
transformers computes. Limits: fp32 1e-5 relative norm; bf16 twice the error of transformers' own bf16 run (at least
2⁻⁸). Exits with 1 if one is passed.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import random
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

import make_golden

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = ["loop", "grouped_linear", "fused_grouped_mlp"]
FP32_LIMIT, BF16_FACTOR, BF16_FLOOR = 1e-5, 2.0, 2.0**-8
# A bf16 run is not compared where an expert more or less would decide: of so many batches the clearest is taken.
BATCHES = 60

# name: arguments of `moebius train` besides the common ones
RUNS = {
    "fp32": [],
    "bf16_packed_tied_window": [
        "dtype=bf16",
        "use_sequence_packing=true",
        "dataset.split_samples_in_token_packing=false",  # a record cut in two is another loss
        "config_kwargs.tie_word_embeddings=true",
        "config_kwargs.sliding_window=24",
        "config_kwargs.head_dim=32",
        "expert_ffn_mode=fused_grouped_mlp",
    ],
    "fp32_top1": ["config_kwargs.num_experts_per_tok=1", "config_kwargs.rope_theta=10000.0"],
}
TEXTS = ["", "A", "ACGTacgtNNNN", "RYSWKMBDHV-.", "ACGT acgt\n", "<BOS>", "A<PAD>C<UNK>G<EOS>", "x<y", "Ä€🧬", "ACGU" * 2500]
SPECIAL = {"<EOS>": 0, "<PAD>": 1, "<BOS>": 2, "<UNK>": 3}


class Report:
    """The comparisons so far; a line on the terminal for each."""

    def __init__(self):
        self.comparisons = []

    def add(self, subject, what, errors, limits, **more):
        """errors and limits by name; what was worst relative to its limit is named."""
        over = {name: error for name, error in errors.items() if not error <= limits[name]}
        worst = max(errors, key=lambda name: errors[name] / limits[name] if limits[name] else errors[name])
        entry = {
            "subject": subject,
            "what": what,
            **more,
            "compared": len(errors),
            "worst": {"name": worst, "error": significant(errors[worst]), "limit": significant(limits[worst])},
            "failed": {name: significant(error) for name, error in over.items()},
        }
        self.comparisons.append(entry)
        print(
            f"{'FAIL' if over else 'ok  '} {subject:26}{what:36}{len(errors):4} compared, worst {worst}: "
            f"{errors[worst]:.3g} of {limits[worst]:.3g}",
            flush=True,
        )

    def failures(self):
        return sum(1 for entry in self.comparisons if entry["failed"])


def significant(value):
    return float(f"{value:.3g}")


def call(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT)
    if result.returncode != 0:
        raise SystemExit(f"parity: {' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def write_fasta(path, lengths, seed):
    """Random bases in which each depends a little on the one before."""
    bases, following = random.Random(seed), {"A": "AACGT", "C": "ACCGT", "G": "ACGGT", "T": "ACGTT"}
    records = []
    for length in lengths:
        sequence = "A"
        while len(sequence) < length:
            sequence += bases.choice(following[sequence[-1]])
        records.append(sequence)
    path.write_text("".join(f">record{i}\n{sequence}\n" for i, sequence in enumerate(records)))
    return records


def train(program, name, arguments, work):
    """(model folder, last line of metrics with a held-out loss, run.json, records held out)"""
    folder = work / name
    folder.mkdir(parents=True)
    write_fasta(folder / "training.fa", [6000, 6000], seed=7)
    records = write_fasta(folder / "held_out.fa", [90, 62, 3, 110, 41], seed=8)
    call(
        program,
        *("train", "--config-path", ROOT / "configs", "--config-name", "L0_sanity", "num_train_steps=4"),
        *(f"dataset.path={folder / 'training.fa'}", f"validation.data_path={folder / 'held_out.fa'}"),
        *("validation.fraction=null", "validation.num_batches=100", "dataset.micro_batch_size=2"),
        *("dataset.max_seq_length=128", "dataset.stride=16", "dataset.buffer_size=64"),
        *(f"logger.run_dir={folder / 'run'}", f"checkpoint.ckpt_dir={folder / 'checkpoints'}"),
        *arguments,
    )
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "val_loss" in line][-1]
    run = json.loads((folder / "run" / "run.json").read_text())
    return folder / "checkpoints" / "step_000004" / "model", held_out, run, records


def documented_ids(text):
    """<BOS>, the bytes (3 for those below 4), <EOS>; the names of special tokens stand for these."""
    ids, rest = [SPECIAL["<BOS>"]], text
    while rest:
        special = next((name for name in SPECIAL if rest.startswith(name)), None)
        ids += [SPECIAL[special]] if special else [byte if byte > 3 else 3 for byte in rest[0].encode()]
        rest = rest[len(special) if special else 1 :]
    return ids + [SPECIAL["<EOS>"]]


def compare_tokenizer(report, name, folder):
    bare = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    chosen = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    errors = {}
    for index, text in enumerate(TEXTS):
        expected = documented_ids(text)
        errors[f"tokenizers {index}"] = float(bare.encode(text).ids != expected)
        errors[f"PreTrainedTokenizerFast {index}"] = float(fast(text)["input_ids"] != expected)
        errors[f"AutoTokenizer {index}"] = float(chosen(text)["input_ids"] != expected)
    for token in ("eos", "pad", "bos", "unk"):
        errors[token] = float(getattr(fast, f"{token}_token_id") != SPECIAL[f"<{token.upper()}>"])
    errors["size"] = float(len(fast) != 256)
    errors["decode"] = float(fast.decode(fast("ACGTacgtN")["input_ids"], skip_special_tokens=True) != "ACGTacgtN")
    report.add(name, "tokenizer", errors, dict.fromkeys(errors, 0.0))


def mean_loss(model, fast, records):
    """Over the bases A C G T of all records, as masked in training."""
    total, count = 0.0, 0
    with torch.no_grad():
        for record in records:
            ids = torch.tensor(fast(record)["input_ids"])
            labels = torch.where(torch.isin(ids, torch.tensor(list(b"ACGTacgt"))), ids, -100)
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            piece, piece_count = make_golden.shifted_loss_sum(logits, labels)
            total, count = total + float(piece), count + piece_count
    return total / count, count


def compare_held_out(report, name, folder, held_out, records):
    fast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    written = json.loads((folder / "config.json").read_text())["dtype"]
    loss, count = mean_loss(make_golden.open_folder(folder, torch.float32), fast, records)
    limit = FP32_LIMIT
    if written == "bfloat16":
        low, _ = mean_loss(make_golden.open_folder(folder, torch.bfloat16), fast, records)
        limit = max(BF16_FACTOR * abs(low - loss) / loss, BF16_FLOOR)
    errors = {"val_loss": abs(held_out["val_loss"] - loss) / loss, "val_labels": float(held_out["val_labels"] != count)}
    report.add(name, f"held-out loss, {written}", errors, {"val_loss": limit, "val_labels": 0.0}, transformers=loss)


def clearest_batch(model, fast):
    """Sequences of bases for which the experts are chosen with the widest margin."""
    config, best, best_margin = model.config, None, -1.0
    for seed in range(BATCHES):
        bases = random.Random(seed)
        ids = torch.tensor([fast("".join(bases.choice("ACGT") for _ in range(14)))["input_ids"] for _ in range(2)])
        with torch.no_grad():
            router_logits = model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits
        margin = math.inf
        for logits in router_logits:
            ranked = logits.sort(-1, descending=True).values
            topk = config.num_experts_per_tok
            if topk < config.num_local_experts:
                margin = min(margin, float((ranked[:, topk - 1] - ranked[:, topk]).min() / logits.abs().max()))
        if margin > best_margin:
            best, best_margin = ids, margin
    labels = best.clone()
    labels[:, -1] = -100
    labels[0, 5] = -100
    return best, labels, best_margin


def reference(folder, ids, labels, lengths):
    """transformers in fp32, and the relative errors of its bf16 run."""
    expected = make_golden.results(make_golden.open_folder(folder, torch.float32), ids, labels, lengths)
    low = make_golden.results(make_golden.open_folder(folder, torch.bfloat16), ids, labels, lengths)
    errors = {
        name: make_golden.relative_error(low[name], value)
        for name, value in expected.items()
        if value.is_floating_point()
    }
    return expected, errors


def compare_forward(report, program, name, folder, batch, expected, low_errors, work):
    save_file(batch, work / "input.safetensors")
    for dtype in ("fp32", "bf16"):
        for mode in MODES:
            output = work / "output.safetensors"
            call(
                program,
                *("forward", "--model", folder, "--input", work / "input.safetensors", "--output", output),
                *("--gradients", "--dtype", dtype, "--expert-ffn-mode", mode),
            )
            ours, errors, limits = load_file(output), {}, {}
            for key, value in expected.items():
                if key not in ours or ours[key].shape != value.shape:
                    errors[key], limits[key] = math.inf, 0.0
                elif not value.is_floating_point():
                    if dtype == "fp32":
                        errors[key], limits[key] = float((ours[key] != value).sum()), 0.0
                else:
                    errors[key] = make_golden.relative_error(ours[key].double(), value.double())
                    low = max(BF16_FACTOR * low_errors[key], BF16_FLOOR)
                    limits[key] = FP32_LIMIT if dtype == "fp32" else low
            report.add(name, f"forward, {dtype}, {mode}", errors, limits)


def compare_golden(report, program, work):
    for folder in sorted((ROOT / "tests" / "golden").iterdir()):
        committed = load_file(folder / "expected.safetensors")
        batch = {name: committed[name] for name in ("input_ids", "labels", "cu_seqlens") if name in committed}
        lengths = batch["cu_seqlens"].diff().tolist() if "cu_seqlens" in batch else None
        expected, low_errors = reference(folder, batch["input_ids"], batch["labels"], lengths)
        plain = json.loads((folder / "case.json").read_text())["gradients"] == "plain"
        errors = {
            name: make_golden.relative_error(committed[name].double(), value.double())
            for name, value in expected.items()
            if plain or not name.startswith("grad.")
        }
        subject = f"golden {folder.name}"
        report.add(subject, "committed values", errors, dict.fromkeys(errors, FP32_LIMIT))
        compare_forward(report, program, subject, folder, batch, expected, low_errors, work)


def versions():
    names = ["torch", "transformers", "tokenizers", "safetensors", "numpy"]
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "bin" / "moebius")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "bench" / "results" / "parity.json")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "parity", help="emptied first")
    arguments = parser.parse_args()
    program, work = arguments.program.resolve(), arguments.work.resolve()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    make_golden.shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)

    report, runs = Report(), {}
    for name, extra in RUNS.items():
        folder, held_out, run, records = train(program, name, extra, work)
        runs[name] = {"arguments": extra, "steps": 4}
        compare_tokenizer(report, name, folder)
        compare_held_out(report, name, folder, held_out, records)
        model = make_golden.open_folder(folder, torch.float32)
        fast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        ids, labels, margin = clearest_batch(model, fast)
        runs[name]["routing_margin"] = significant(margin)
        expected, low_errors = reference(folder, ids, labels, None)
        batch = {"input_ids": ids, "labels": labels}
        compare_forward(report, program, name, folder, batch, expected, low_errors, work)
    compare_golden(report, program, work)

    result = {
        "date": datetime.date.today().isoformat(),
        "commit": run["moebius"]["commit"],
        "moebius": run["moebius"],
        "device": run["device"],
        "versions": versions(),
        "limits": {"fp32": FP32_LIMIT, "bf16": f"max({BF16_FACTOR:g} x error of transformers in bf16, 2^-8)"},
        "runs": runs,
        "failures": report.failures(),
        "comparisons": report.comparisons,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(report.comparisons)} comparisons, {report.failures()} failed: {arguments.output}")
    return 1 if report.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
