#!/usr/bin/env python3
"""Golden values from Hugging Face transformers for small Mixtral models: what tests/eval compares Moebius with.

usage: make_golden.py OUT [CASE…]        (no CASE: all; `make_golden.py --list` names them)
       make_golden.py --gpu-errors OUT CASE…        adds bf16_error_gpu.json to folders that are there

Needs torch, transformers and safetensors; everything is computed on one CPU thread. OUT/CASE becomes a Hugging Face
model folder, read back with from_pretrained before anything is computed, and gets besides

  expected.safetensors   input_ids (B, S), or (T) with cu_seqlens (n + 1); labels like input_ids, -100 = ignored;
                         logits, loss (cross-entropy over all labels + router_aux_loss_coef · aux_loss, the latter
                         where output_router_logits is set), aux_loss;
                         router_logits.L (tokens, experts), topk_indices.L (tokens, k);
                         grad.NAME: d loss / d parameter, NAME as in named_parameters()
  bf16_error.json        relative error ‖bf16 − fp32‖ / ‖fp32‖ of transformers' own bf16 run, for each of these
  case.json              what the case is for, whether its gradients were clipped, and who computed it

The seed of a case is the first with which no token is undecided between two experts, so that bf16 takes the same ones.
"""
import argparse
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

# Small enough that a folder stays below 150 KB.
BASE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "router_aux_loss_coef": 0.02,
    "output_router_logits": True,
}
TWO_LAYERS = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 20, "num_local_experts": 3}
ROWS, LENGTH = 2, 12

# name: what for, changes to BASE, and how the folder or the batch differs
CASES = {
    "tied": {"about": "the head is the embedding; both gradients add up", "config": {"tie_word_embeddings": True}},
    "head_dim": {
        "about": "head_dim is not hidden_size / heads, every query head has its own keys, and no auxiliary loss",
        "config": {
            "head_dim": 12,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "output_router_logits": False,
        },
    },
    "window": {
        "about": "a sliding window shorter than the sequence, over two layers, and an rms_norm_eps that is felt",
        "config": {**TWO_LAYERS, "sliding_window": 5, "rms_norm_eps": 1e-3},
        "rows": 1,
        "length": 24,
    },
    "packed": {"about": "sequences of 1, 7, 11 and 5 tokens packed", "config": TWO_LAYERS, "lengths": [1, 7, 11, 5]},
    "packed_window": {
        "about": "packed sequences with a window shorter than the longest; rope_parameters.rope_theta is not the default",
        "config": {"sliding_window": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 200.0}},
        "lengths": [9, 3, 12],
    },
    "rope_theta": {
        "about": "rope_theta at the top level of config.json, as written before transformers 5, and not the default",
        "config": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        "old_rope_spelling": True,
    },
    "per_expert": {"about": "one tensor an expert and matrix; the same model as fused_experts", "config": {}},
    "fused_experts": {
        "about": "one tensor for all experts, under the names of the modules; the same model as per_expert",
        "config": {},
        "fused_file": True,
    },
    "sharded": {"about": "weights in several files with an index", "config": TWO_LAYERS, "shard": "24KB"},
    "sharded_fused": {
        "about": "fused expert tensors in several files with an index",
        "config": {},
        "fused_file": True,
        "shard": "24KB",
    },
    "one_expert": {
        "about": "a single expert: nothing to choose, and the router's gradient is zero",
        "config": {"num_local_experts": 1, "num_experts_per_tok": 1},
    },
    "top1": {"about": "one expert of four a token", "config": {"num_experts_per_tok": 1}},
    "all_experts": {
        "about": "every token goes to all three experts",
        "config": {"num_local_experts": 3, "num_experts_per_tok": 3},
    },
    "alike": {
        "about": "tokens that share most of their embedding: what tells keys apart is small beside what they have in common",
        "config": TWO_LAYERS,
        "common": 0.6,
    },
    "pad": {"about": "pad_token_id is set: its row is looked up and gets no gradient", "config": {"pad_token_id": 5}},
    "pad_tied": {
        "about": "pad_token_id with tied embeddings: the row's gradient is the head's alone",
        "config": {"pad_token_id": 5, "tie_word_embeddings": True},
    },
}


def build_model(case, config, seed):
    """Weights three times the usual, and norms that differ from one: small mistakes show."""
    torch.manual_seed(seed)
    model = MixtralForCausalLM(MixtralConfig(dtype=torch.float32, **config)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
        if "common" in case:
            model.model.embed_tokens.weight.add_(case["common"] * torch.randn(config["hidden_size"]))
        # transformers starts the padding row at zero; a trained file may hold anything there.
        if config.get("pad_token_id") is not None:
            model.model.embed_tokens.weight[config["pad_token_id"]] = 0.05 * torch.randn(config["hidden_size"])
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(case.get("gate", 6.0))  # experts that differ clearly
    return model


def build_batch(case, config, seed):
    """input_ids, labels and the lengths of packed sequences (None for a rectangular batch)."""
    torch.manual_seed(1000 + seed)
    lengths = case.get("lengths")
    shape = (sum(lengths),) if lengths else (case.get("rows", ROWS), case.get("length", LENGTH))
    ids = torch.randint(6, config["vocab_size"], shape)
    labels = ids.clone()
    labels.view(-1)[[2, 3, -2]] = -100
    if config.get("pad_token_id") is not None:
        # In the middle and at the end; one of them with a label, so that the head has something to say on the row.
        ids[:, [3, 4, -1]] = config["pad_token_id"]
        labels[:, [3, -1]] = -100
        labels[:, 4] = config["pad_token_id"]
    return ids, labels, lengths


def write_folder(case, config, model, folder):
    options = {"max_shard_size": case["shard"]} if "shard" in case else {}
    if case.get("fused_file"):
        options["save_original_format"] = False
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.get("old_rope_spelling"):
        path = folder / "config.json"
        written = json.loads(path.read_text())
        written["rope_theta"] = written.pop("rope_parameters")["rope_theta"]
        path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def open_folder(folder, dtype):
    model = MixtralForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", local_files_only=True)
    model.config._experts_implementation = "eager"
    return model.train()


def shifted_loss_sum(logits, labels):
    """Cross-entropy of each token's successor within one sequence, summed in fp32, and how many there were."""
    targets = labels[..., 1:].reshape(-1)
    predictions = logits[..., :-1, :].float().reshape(targets.numel(), logits.shape[-1])
    total = torch.nn.functional.cross_entropy(predictions, targets, ignore_index=-100, reduction="sum")
    return total, int((targets != -100).sum())


def check_with_one_call(model, ids, labels, lengths, outputs, loss):
    """transformers' own loss of the whole batch; for packed sequences, its own reading of them by positions."""
    tolerance = 1e-5 if model.dtype == torch.float32 else 2e-2
    if not lengths:
        whole = model(input_ids=ids, labels=labels, use_cache=False).loss
        assert torch.allclose(whole, loss, rtol=tolerance), (whole, loss)
        return
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    whole = model(input_ids=ids[None], position_ids=positions, use_cache=False).logits[0]
    pieces = torch.cat([output.logits[0] for output in outputs])
    assert relative_error(whole, pieces) < tolerance, relative_error(whole, pieces)


def results(model, ids, labels, lengths):
    """Everything that is compared. Packed sequences run one by one; means are over the labels and tokens of all."""
    config = model.config
    pieces = list(zip(ids.split(lengths), labels.split(lengths))) if lengths else [(ids, labels)]
    outputs, loss_sum, count = [], 0.0, 0
    for piece_ids, piece_labels in pieces:
        rows = piece_ids.view(-1, piece_ids.shape[-1])
        output = model(input_ids=rows, use_cache=False, output_router_logits=True)
        piece_sum, piece_count = shifted_loss_sum(output.logits.view(*piece_ids.shape, -1), piece_labels)
        loss_sum, count = loss_sum + piece_sum, count + piece_count
        outputs.append(output)
    router_logits = tuple(
        torch.cat([output.router_logits[layer] for output in outputs]) for layer in range(config.num_hidden_layers)
    )
    aux_loss = load_balancing_loss_func(router_logits, config.num_local_experts, config.num_experts_per_tok)
    loss = loss_sum / count
    if config.output_router_logits:  # as transformers does
        loss = loss + config.router_aux_loss_coef * aux_loss
    check_with_one_call(model, ids, labels, lengths, outputs, loss)
    model.zero_grad()
    loss.backward()
    out = {"loss": loss}
    if config.output_router_logits:
        out["aux_loss"] = aux_loss
    out["logits"] = torch.cat([output.logits.reshape(-1, config.vocab_size) for output in outputs]).view(*ids.shape, -1)
    for layer, logits in enumerate(router_logits):
        out[f"router_logits.{layer}"] = logits
        probabilities = torch.softmax(logits.float(), -1)
        out[f"topk_indices.{layer}"] = torch.topk(probabilities, config.num_experts_per_tok).indices
    for name, parameter in model.named_parameters():
        out[f"grad.{name}"] = parameter.grad
    return {name: value.detach().contiguous().clone() for name, value in out.items()}


def relative_error(value, reference):
    value, reference = value.detach(), reference.detach()
    norm = reference.float().norm()
    return float((value.float() - reference.float()).norm() / norm) if norm > 0 else float(value.float().norm())


def decided(expected, topk):
    """No token is close to another choice of experts, nor (for the order) two chosen ones to each other."""
    for name, logits in expected.items():
        if not name.startswith("router_logits."):
            continue
        ranked = logits.sort(-1, descending=True).values
        gaps = ranked[:, :-1] - ranked[:, 1:]
        if topk < logits.shape[-1] and gaps[:, topk - 1].min() < 0.03 * logits.abs().max():
            return False
        if gaps.numel() and gaps.min() < 1e-3 * logits.abs().max():
            return False
    return True


def same_experts(left, right):
    return all(
        torch.equal(left[name].sort(-1).values, right[name].sort(-1).values)
        for name in left
        if name.startswith("topk_indices.")
    )


def attempt(case, config, seed, folder):
    """Writes the folder with this seed; None if a token of it is undecided."""
    shutil.rmtree(folder, ignore_errors=True)
    built = build_model(case, config, seed)
    write_folder(case, config, built, folder)
    model = open_folder(folder, torch.float32)
    for (name, value), (_, reference) in zip(model.named_parameters(), built.named_parameters(), strict=True):
        assert torch.equal(value, reference), f"{folder}: {name} was read back with other values"
    theta = config.get("rope_parameters", {}).get("rope_theta", 1e6)
    assert model.config.rope_parameters["rope_theta"] == theta, model.config.rope_parameters
    if "shard" in case:
        assert len(list(folder.glob("model-*.safetensors"))) >= 2, "a single file is no sharded folder"
    ids, labels, lengths = build_batch(case, config, seed)
    expected = results(model, ids, labels, lengths)
    low = results(open_folder(folder, torch.bfloat16), ids, labels, lengths)
    if not decided(expected, config["num_experts_per_tok"]) or not same_experts(expected, low):
        return None
    tensors = {"input_ids": ids, "labels": labels, **expected}
    if lengths:
        tensors["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0)
    errors = {
        name: float(f"{relative_error(low[name], value):.3g}")
        for name, value in expected.items()
        if value.is_floating_point()
    }
    return tensors, errors


def make(name, out):
    case = CASES[name]
    config = {**BASE, **case["config"]}
    folder = out / name
    for seed in range(1, 1000):
        made = attempt(case, config, seed, folder)
        if made:
            break
    else:
        raise SystemExit(f"{name}: no seed below 1000 decides every token")
    tensors, errors = made
    save_file(tensors, folder / "expected.safetensors")
    (folder / "bf16_error.json").write_text(json.dumps(errors, indent=1) + "\n")
    about = {
        "about": case["about"],
        "gradients": "plain",
        "seed": seed,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (folder / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: seed {seed}, loss {float(tensors['loss']):.6f}, {size} bytes")


def gpu_errors(folder):
    """bf16_error_gpu.json: the same errors where transformers' bf16 run is on a GPU, with the flash attention of torch (as ours
    there, it keeps no more of its output than bf16, which the backward pass subtracts)."""
    expected = load_file(folder / "expected.safetensors")
    lengths = expected["cu_seqlens"].diff().tolist() if "cu_seqlens" in expected else None
    model = MixtralForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
    )
    model.config._experts_implementation = "eager"
    batch = (expected["input_ids"].cuda(), expected["labels"].cuda(), lengths)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        low = results(model.cuda().train(), *batch)
    clipped = json.loads((folder / "case.json").read_text())["gradients"] == "clipped"
    gradients = [value.float().norm() for name, value in low.items() if name.startswith("grad.")]
    clip = min(1.0, 1.0 / (float(torch.stack(gradients).norm()) + 1e-6)) if clipped else 1.0
    errors = {}
    for name, value in expected.items():
        if name in low and value.is_floating_point():
            factor = clip if name.startswith("grad.") else 1.0
            errors[name] = float(f"{relative_error(factor * low[name].float().cpu(), value):.3g}")
    errors = {"made with": f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}", **errors}
    (folder / "bf16_error_gpu.json").write_text(json.dumps(errors, indent=1) + "\n")
    print(f"{folder.name}: most {max(v for v in errors.values() if isinstance(v, float)):.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--gpu-errors", action="store_true", help="bf16_error_gpu.json for the cases' folders under OUT, on a GPU")
    parser.add_argument("--list", action="store_true", help="name the cases and what each is for")
    arguments = parser.parse_args()
    if arguments.list:
        for name, case in CASES.items():
            print(f"{name:16}{case['about']}")
        return
    if arguments.out is None:
        parser.error("OUT is missing")
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    if arguments.gpu_errors:
        for name in arguments.cases:
            gpu_errors(arguments.out / name)
        return
    for name in arguments.cases or CASES:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
