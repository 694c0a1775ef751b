#!/usr/bin/env python3
"""Compares a written tokenizer with Hugging Face's reading of it.

usage: check_tokenizer.py FOLDER CASES

FOLDER holds tokenizer.json, tokenizer_config.json and special_tokens_map.json. CASES has one JSON object a line,
{"text": ..., "ids": [...]}: what the program's own encoder gives. Exits with 1 if `tokenizers` or
`PreTrainedTokenizerFast` gives anything else.
"""
import json
import sys

from tokenizers import Tokenizer
from transformers import AutoTokenizer


def main() -> int:
    folder, cases_path = sys.argv[1:3]
    bare = Tokenizer.from_file(f"{folder}/tokenizer.json")
    fast = AutoTokenizer.from_pretrained(folder)
    wrong = 0
    with open(cases_path, encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    for case in cases:
        for name, ids in (("tokenizers", bare.encode(case["text"]).ids), ("transformers", fast(case["text"])["input_ids"])):
            if ids != case["ids"]:
                wrong += 1
                print(f"{name}: {case['text'][:40]!r}: {ids[:20]} instead of {case['ids'][:20]}")
    special = {"bos": (fast.bos_token_id, 2), "eos": (fast.eos_token_id, 0), "pad": (fast.pad_token_id, 1),
               "unk": (fast.unk_token_id, 3), "size": (len(fast), 256)}
    for name, (ours, expected) in special.items():
        if ours != expected:
            wrong += 1
            print(f"{name}: {ours} instead of {expected}")
    decoded = fast.decode(fast("ACGTacgtN")["input_ids"], skip_special_tokens=True)
    if decoded != "ACGTacgtN":
        wrong += 1
        print(f"decode: {decoded!r}")
    print(f"{len(cases)} texts, {wrong} differences")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
