#!/usr/bin/env python3
"""The other side of the training step: Hugging Face Mixtral on torch CPU, in turns with moebius_bench step.

    hf_l0_step.py --experts eager|grouped_mm [--threads N] [--rows 8] [--length 1024] [--tokens FILE of int32]

Model: configs/models/l0_sanity, fp32, sdpa attention, auxiliary loss on. A step: forward, backward, clipping of the global
norm at 1, fused AdamW. The first line says what this is; then every line `step` or `sgemm` of standard input is answered
with its seconds, until `quit`.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = (4096, 1024, 1024)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", default="eager", choices=("eager", "grouped_mm"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs/models/l0_sanity")
    return parser.parse_args()


def make_model(options):
    config = transformers.MixtralConfig.from_pretrained(options.config)
    config.use_cache = False
    config._attn_implementation = "sdpa"
    model = transformers.MixtralForCausalLM(config).float().train()
    model.set_experts_implementation(options.experts)
    if model.config._experts_implementation != options.experts:
        raise SystemExit(f"transformers {transformers.__version__} does not take experts implementation {options.experts}")
    return model


def read_tokens(options):
    count = options.rows * options.length
    if options.tokens is None:
        letters = torch.tensor(list(b"ACGT"))
        return letters[torch.randint(4, (options.rows, options.length))]
    data = bytearray(options.tokens.read_bytes())
    if len(data) < 4 * count:
        raise SystemExit(f"{options.tokens}: not {count} int32 tokens")
    return torch.frombuffer(data, dtype=torch.int32)[:count].reshape(options.rows, options.length).long()


class Side:
    def __init__(self, options):
        self.model = make_model(options)
        self.tokens = read_tokens(options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1, fused=True)
        m, n, k = PRODUCT
        self.a, self.b, self.out = torch.randn(m, k), torch.randn(n, k), torch.empty(m, n)

    def step(self):
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(input_ids=self.tokens, labels=self.tokens)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        loss = out.loss.item()
        return {"seconds": time.perf_counter() - start, "loss": loss}

    def sgemm(self):
        samples = []
        for run in range(6):
            start = time.perf_counter()
            torch.mm(self.a, self.b.t(), out=self.out)
            if run:
                samples.append(time.perf_counter() - start)
        return {"seconds": statistics.median(samples)}


def put(line):
    print(json.dumps(line), flush=True)


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(42)
    side = Side(options)
    put(
        {
            "version": f"transformers {transformers.__version__} torch {torch.__version__}",
            "experts": options.experts,
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in side.model.parameters()),
        }
    )
    for line in sys.stdin:
        if line.strip() == "quit":
            return
        if line.strip() == "sgemm":
            with torch.no_grad():
                put(side.sgemm())
        elif line.strip() == "step":
            put(side.step())
        else:
            raise SystemExit(f"'{line.strip()}': lines are step, sgemm, quit")


if __name__ == "__main__":
    main()
