"""What tests of the built program share. CTest sets MOEBIUS (the program) and MOEBIUS_SOURCE_DIR; each test is a unittest
file tests/cli/test_*.py, run by `python3 test_x.py`.

    class SomeTest(program.TestCase):
        def test_it(self):
            fasta = program.write_fasta(self.folder / "small.fa")
            result = self.moebius("train", *program.small(fasta, self.folder))        # exits 0, or the test fails
            self.refused("dataset.stride", "train", *program.small(fasta, self.folder), "dataset.stride=8190")
"""

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


def metrics(run_dir):
    """metrics.jsonl of a run, as a list of objects; a line that is no JSON object is an error."""
    with open(pathlib.Path(run_dir) / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


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
        return subprocess.run(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
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
        for trace in ("terminate called", "Aborted", "Segmentation", "what():", "MOEBIUS_CHECK"):
            self.assertNotIn(trace, result.stderr)
        return result

    def as_nobody(self):
        """Options for call() that run it as a user who may not write everywhere; root hands the scratch folder to him."""
        if os.getuid() != 0:
            return {}
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        # The program must be readable for him; a clone under a closed home is not, so he gets a copy.
        copy = self.folder / "program"
        if not copy.exists():
            shutil.copy(PROGRAM, copy)
            os.chmod(copy, 0o755)
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def main():
    unittest.main(verbosity=1)
