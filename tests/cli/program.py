"""What tests of the built program share. CTest sets MOEBIUS (the program) and MOEBIUS_SOURCE_DIR; each test is a unittest
file tests/cli/test_*.py, run by `python3 test_x.py`.

    class SomeTest(program.TestCase):
        def test_it(self):
            fasta = program.write_fasta(self.folder / "small.fa")
            result = self.moebius("train", *program.small(fasta, self.folder))        # exits 0, or the test fails
            self.refused("dataset.stride", "train", *program.small(fasta, self.folder), "dataset.stride=8190")
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("MOEBIUS", "")
SOURCE_DIR = pathlib.Path(os.environ.get("MOEBIUS_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
NOBODY = 65534


def write_fasta(path, records=2, bases=20000, seed=7, width=60):
    """A FASTA file of random bases with a weak order-1 pattern, so that a model has something to learn."""
    random_bases = random.Random(seed)
    following = {"A": "AACGT", "C": "ACCGT", "G": "ACGGT", "T": "ACGTT"}
    with open(path, "w", encoding="ascii") as out:
        for record in range(records):
            out.write(f">record{record} made for a test\n")
            base, line = "A", []
            for position in range(bases):
                base = random_bases.choice(following[base])
                line.append(base)
                if len(line) == width or position + 1 == bases:
                    out.write("".join(line) + "\n")
                    line = []
    return pathlib.Path(path)


def small(fasta, folder, steps=2):
    """Arguments of a run of L0_sanity that takes a second or two."""
    return [
        "--config-name",
        "L0_sanity",
        f"dataset.path={fasta}",
        f"num_train_steps={steps}",
        "dataset.micro_batch_size=2",
        "dataset.max_seq_length=128",
        "dataset.stride=16",
        "dataset.buffer_size=64",
        f"logger.run_dir={folder}/run",
        f"checkpoint.ckpt_dir={folder}/checkpoints",
        "logger.frequency=1",
    ]


def tiny(fasta, folder, steps=3):
    """Arguments of a run of a model of 7,000 parameters: a step takes half a millisecond."""
    return [
        *small(fasta, folder, steps),
        "dataset.max_seq_length=32",
        "dataset.stride=4",
        "dataset.num_workers=1",
        "num_threads=1",
        "validation.enabled=false",
        "config_kwargs.hidden_size=16",
        "config_kwargs.intermediate_size=16",
        "config_kwargs.num_attention_heads=2",
        "config_kwargs.num_key_value_heads=1",
        "config_kwargs.num_hidden_layers=1",
    ]


def tensors(folder):
    """A hash of every safetensors file of a checkpoint, by name: what two equal runs must share."""
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in pathlib.Path(folder).rglob("*.safetensors")
    }
    assert len(found) >= 2, f"{folder} holds {sorted(found)}"
    return found


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    return {
        name: (entry["dtype"], entry["shape"], body[entry["data_offsets"][0] : entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def write_safetensors(path, entries):
    header, body = {}, b""
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)


def integers(values, shape=None, dtype="I64"):
    """An entry for write_safetensors."""
    size = {"I64": 8, "I32": 4}[dtype]
    data = b"".join(value.to_bytes(size, "little", signed=True) for value in values)
    return dtype, shape or [len(values)], data


def no_constant(text):
    """Python reads NaN and Infinity; JSON has neither."""
    raise ValueError(f"{text} is not JSON")


def metrics(run_dir):
    """metrics.jsonl of a run, as a list of objects; a line that is no JSON object is an error."""
    with open(pathlib.Path(run_dir) / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line, parse_constant=no_constant) for line in lines]


class TestCase(unittest.TestCase):
    """A scratch folder for each test, and ways to call the program."""

    maxDiff = None

    def setUp(self):
        self.assertTrue(PROGRAM and os.access(PROGRAM, os.X_OK), f"MOEBIUS={PROGRAM!r} is no program")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="moebius-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *arguments, **options):
        """The program, started; for tests that send signals."""
        options.setdefault("cwd", self.folder)
        return subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def call(self, *arguments, timeout=120, **options):
        """Runs the program to its end; CompletedProcess with text."""
        options.setdefault("cwd", self.folder)
        options = self.reachable(options)
        return subprocess.run(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            **options,
        )

    def moebius(self, *arguments, **options):
        """The same, and it must exit 0."""
        result = self.call(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result

    def refused(self, expected, *arguments, **options):
        """A user's mistake: non-zero exit by itself (no signal), `expected` (a text or several) on stderr, no stack trace."""
        result = self.call(*arguments, **options)
        self.assertGreater(result.returncode, 0, f"{arguments}\n{result.stdout}\n{result.stderr}")
        for text in [expected] if isinstance(expected, str) else expected:
            self.assertIn(text, result.stderr, f"{arguments}\n{result.stdout}")
        for trace in ("terminate called", "Aborted", "Segmentation", "what():", "check failed", "internal error"):
            self.assertNotIn(trace, result.stderr)
        return result

    def as_nobody(self):
        """Options for call() that run it as a user who may not write everywhere; root hands the scratch folder to him."""
        if os.getuid() != 0:
            return {}
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def reachable(self, options):
        """`options`, with a program that another user can reach: the clone may lie in a home that is closed to him."""
        if "user" not in options:
            return options
        installed = self.folder / "installed"
        if not installed.exists():
            (installed / "bin").mkdir(parents=True)
            shutil.copy(PROGRAM, installed / "bin")
            shutil.copytree(SOURCE_DIR / "configs", installed / "share/moebius/configs")
            for path in [installed, *installed.rglob("*")]:
                os.chmod(path, 0o755)
        return {"executable": str(installed / "bin" / pathlib.Path(PROGRAM).name), **options}


def main():
    unittest.main(verbosity=1)
