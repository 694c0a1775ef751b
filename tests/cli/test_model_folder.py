"""Names, shapes, dtypes and configuration keys of every kind of model folder that training writes, against the lists in
tests/cli/model_folders/: what other programs read must not change unnoticed. Reads safetensors headers by itself.

After a change that is meant: MOEBIUS=build/bin/moebius python3 tests/cli/test_model_folder.py --write
"""

import json
import os
import pathlib
import struct
import sys

import program

LISTS = pathlib.Path(__file__).resolve().parent / "model_folders"
BYTES = {"F32": 4, "BF16": 2}

# A small model, so that a run takes less than a second.
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 3,
}
# name of the list: arguments, config_kwargs
FOLDERS = {
    "fp32": ([], {}),
    "bf16": (["dtype=bf16"], {}),
    "tied": ([], {"tie_word_embeddings": "true"}),
    "head_dim_window_theta": (
        [],
        {"head_dim": 6, "sliding_window": 20, "rope_theta": 5000.0, "num_hidden_layers": 1, "num_experts_per_tok": 1},
    ),
    # The shipped configuration itself.
    "l0_sanity": ([], None),
}


def read_header(path):
    """The header of a safetensors file, its data checked to be dense and as long as it says."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        metadata, at = header.pop("__metadata__", {}), 0
        for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            count = 1
            for size in tensor["shape"]:
                count *= size
            begin, end = tensor["data_offsets"]
            if begin != at or end - begin != count * BYTES[tensor["dtype"]]:
                raise AssertionError(f"{path}: {name} lies at {begin} to {end}, expected from {at}")
            at = end
        if os.path.getsize(path) != 8 + length + at:
            raise AssertionError(f"{path}: {os.path.getsize(path)} bytes, the header speaks of {8 + length + at}")
    return metadata, header


def describe(folder):
    """What the list of a folder holds."""
    metadata, header = read_header(folder / "model.safetensors")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "config": json.loads((folder / "config.json").read_text()),
        "metadata": metadata,
        "tensors": {name: [tensor["dtype"], *tensor["shape"]] for name, tensor in sorted(header.items())},
        "tokenizer": {
            "vocabulary": len(tokenizer["model"]["vocab"]),
            "special": {token["content"]: token["id"] for token in tokenizer["added_tokens"]},
            "config": json.loads((folder / "tokenizer_config.json").read_text()),
            "special_tokens_map": json.loads((folder / "special_tokens_map.json").read_text()),
        },
    }


def arguments(name, fasta, folder):
    extra, model = FOLDERS[name]
    keys = [] if model is None else [f"config_kwargs.{key}={value}" for key, value in {**SMALL, **model}.items()]
    return ["train", *program.small(fasta, folder, steps=1), *keys, *extra]


def list_of(name):
    return LISTS / f"{name}.json"


def text_of(description):
    """As JSON with one tensor a line, so that a difference reads well."""
    parts = {key: json.dumps(value, indent=1, sort_keys=True) for key, value in description.items()}
    parts["tensors"] = "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in description["tensors"].items())
    parts["tensors"] += "\n }"
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {part}" for key, part in parts.items()) + "\n}\n"


class ModelFolderTest(program.TestCase):
    def train(self, name):
        fasta = program.write_fasta(self.folder / "small.fa", bases=4000)
        self.moebius(*arguments(name, fasta, self.folder))
        return self.folder / "checkpoints" / "step_000001" / "model"

    def test_folders_are_as_listed(self):
        for name in FOLDERS:
            with self.subTest(name):
                self.setUp()
                expected = json.loads(list_of(name).read_text())
                self.assertEqual(describe(self.train(name)), expected)

    def test_every_list_is_of_a_folder(self):
        self.assertEqual(sorted(path.stem for path in LISTS.glob("*.json")), sorted(FOLDERS))

    def test_a_folder_read_and_written_again_is_the_same(self):
        """init_from_pretrained of a written folder, no step's worth of learning: the same names and keys again."""
        first = self.train("bf16")
        fasta = self.folder / "small.fa"
        again = self.folder / "again"
        self.moebius(*arguments("bf16", fasta, again), f"init_from_pretrained={first}", "adamw_kwargs.lr=0")
        second = again / "checkpoints" / "step_000001" / "model"
        self.assertEqual(describe(second), describe(first))
        self.assertEqual((second / "model.safetensors").read_bytes(), (first / "model.safetensors").read_bytes())


def write():
    LISTS.mkdir(exist_ok=True)
    for name in FOLDERS:
        test = ModelFolderTest("test_folders_are_as_listed")
        test.setUp()
        list_of(name).write_text(text_of(describe(test.train(name))))
        test.doCleanups()
        print(f"wrote {list_of(name)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        program.main()
