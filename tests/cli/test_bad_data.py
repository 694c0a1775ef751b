"""Training data as it comes, and as it must not come: one clear error that names file, place and key."""

import gzip
import os
import random
import subprocess

import program


class BadDataTest(program.TestCase):
    def setUp(self):
        super().setUp()
        self.fasta = program.write_fasta(self.folder / "small.fa", bases=3000)

    def file(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def rejected(self, expected, path, *more):
        result = self.refused(expected, "train", *program.tiny(path, self.folder), *more)
        # Refused before anything is made.
        self.assertFalse((self.folder / "run").exists())
        self.assertFalse((self.folder / "checkpoints").exists())
        return result

    def trains(self, path, *more):
        """The losses of a run of three steps."""
        self.result = self.moebius(
            "train", *program.tiny(path, self.folder), "checkpoint.resume_from_checkpoint=false", *more
        )
        return [line["loss"] for line in program.metrics(self.folder / "run") if "loss" in line]

    def test_missing(self):
        self.rejected(["nothing.fa", "No such file", "dataset.path"], self.folder / "nothing.fa")
        self.rejected(["nothing.fa", "No such file"], f"{self.fasta},{self.folder}/nothing.fa")
        self.rejected(["matches no file", "dataset.path"], f"{self.folder}/*.fna")
        self.rejected(
            ["nothing.fa", "validation.data_path"],
            self.fasta,
            "validation.enabled=true",
            "validation.fraction=null",
            f"validation.data_path={self.folder}/nothing.fa",
        )
        # The key that is at fault is named, and no other.
        result = self.rejected(
            "validation.data_path = ",
            self.fasta,
            *("validation.enabled=true", "validation.fraction=null", f"validation.data_path={self.folder}/*.fna"),
        )
        self.assertNotIn("dataset.path", result.stderr)

    def test_folders_and_special_files(self):
        (self.folder / "empty").mkdir()
        self.rejected(["holds no file of a known format", "dataset.path"], self.folder / "empty")
        (self.folder / "texts").mkdir()
        (self.folder / "texts" / "readme.txt").write_text("hello")
        self.rejected(["holds no file of a known format", "1 other"], self.folder / "texts")
        self.rejected(["/dev/null", "not a regular file"], "/dev/null")
        os.mkfifo(self.folder / "pipe.fa")
        self.rejected("not a regular file", self.folder / "pipe.fa")

    def test_empty_and_unreadable(self):
        self.rejected(["is empty", "dataset.path"], self.file("empty.fa", b""))
        self.rejected(["empty.fa.gz", "empty"], self.file("empty.fa.gz", gzip.compress(b"")))
        options = self.as_nobody()
        closed = self.file("closed.fa", b">a\nACGT\n")
        closed.chmod(0)
        # The test says nothing unless a plain read fails for this user.
        plain = subprocess.run(["cat", closed], capture_output=True, check=False, **options)
        self.assertNotEqual(plain.returncode, 0)
        configs = ["--config-path", self.folder / "configs"]
        subprocess.run(["cp", "-r", program.SOURCE_DIR / "configs", self.folder], check=True)
        self.refused(
            ["closed.fa", "Permission denied", "dataset.path"],
            "train",
            *configs,
            *program.tiny(closed, self.folder),
            **options,
        )

    def test_damaged_gzip(self):
        packed = gzip.compress(self.fasta.read_bytes())
        self.rejected(["cut.fa.gz", "truncated"], self.file("cut.fa.gz", packed[:1500]))
        self.rejected("tail.fa.gz", self.file("tail.fa.gz", packed + b"something else"))
        broken = bytearray(packed)
        broken[len(broken) // 2] ^= 0xFF
        self.rejected("bits.fa.gz", self.file("bits.fa.gz", bytes(broken)))

    def test_no_fasta(self):
        self.rejected(["not FASTA", "line 1", "'h'"], self.file("text.txt", b"hello world\n"))
        self.rejected(["not FASTA"], self.file("random.fa", random.Random(3).randbytes(5000)))
        self.rejected(["line 2", "column 5", "0x00"], self.file("nul.fa", b">a\nACGT\0ACGT\n"))
        self.rejected(["line 2", "0xFF"], self.file("high.fa", b">a\nACGT\xffACGT\n"))
        self.rejected(["no record", "sequence"], self.file("headers.fa", b">a\n>b\n"))

    def test_proteins(self):
        chance = random.Random(5)
        proteins = "".join(chance.choice("ACDEFGHIKLMNPQRSTVWY") for _ in range(4000))
        path = self.file("proteins.fa", f">p\n{proteins}\n".encode())
        self.rejected(["%", "proteins?", "dataset.tokenizer = nucleotide"], path)

    def test_the_shortest_sequence_and_no_labels_at_all(self):
        # One base between BOS and EOS is something to predict; in a genome of N nothing is.
        self.assertTrue(all(loss > 4 for loss in self.trains(self.file("one.fa", b">a\nA\n"))))
        self.assertNotIn("warning", self.result.stdout)
        unknown = self.file("n.fa", b">a\n" + b"N" * 4000 + b"\n")
        self.assertEqual(self.trains(unknown), [0, 0, 0])
        self.assertRegex(self.result.stdout, r"warning: step 1: no label counts .*record 0 \(a\)")
        self.assertTrue(all(loss > 4 for loss in self.trains(unknown, "dataset.mask_degenerate_bases=false")))
        held_out = ["validation.enabled=true", "validation.fraction=null", f"validation.data_path={unknown}"]
        self.trains(self.fasta, *held_out)
        self.assertIn("warning: the held-out data have no label", self.result.stdout)

    def test_one_sequence_in_many_spellings(self):
        plain = self.fasta.read_bytes()
        expected = self.trains(self.fasta)
        lines = plain.splitlines()
        spellings = {
            "crlf.fa": plain.replace(b"\n", b"\r\n"),
            "no_newline.fa": plain.rstrip(b"\n"),
            "blank.fa": b"\n".join(line + (b"\n" if line[:1] == b">" else b"") for line in lines) + b"\n",
            "long.fa": b"".join(b"\n" + line + b"\n" if line[:1] == b">" else line for line in lines)[1:],
            "members.fa.gz": gzip.compress(plain[:2000]) + gzip.compress(plain[2000:]),
            "a name, with é and spaces.fa": plain,
        }
        for name, data in spellings.items():
            self.assertEqual(self.trains(self.file(name, data)), expected, name)
        # Soft masking is another input.
        masked = b"\n".join(line if line[:1] == b">" else line.lower() for line in lines)
        self.assertNotIn("soft masking", self.result.stdout)
        self.assertNotEqual(self.trains(self.file("masked.fa", masked)), expected)
        self.assertIn("100.0% of the letters are lower case (soft masking)", self.result.stdout)
        self.assertIn("dataset.uppercase_labels=true", self.result.stdout)
        self.trains("masked.fa", "dataset.uppercase_labels=true")
        self.assertRegex(self.result.stdout, r"soft masking\), and labels are upper case")

    def test_a_held_out_loss_that_is_not_finite_is_told(self):
        held_out = ["validation.enabled=true", f"validation.data_path={self.fasta}", "validation.fraction=null"]
        self.trains(self.fasta, *held_out)
        self.assertNotIn("not finite", self.result.stdout)
        self.trains(self.fasta, *held_out, "num_train_steps=2", "adamw_kwargs.weight_decay=1e30")
        self.assertRegex(self.result.stdout, r"warning: the held-out loss is not finite at step \d")

    def test_letters_that_are_no_labels_are_told(self):
        plain = self.fasta.read_bytes()
        self.trains(self.fasta)
        self.assertNotIn("not A, C, G or T", self.result.stdout)
        rna = b"\n".join(line if line[:1] == b">" else line.replace(b"T", b"U") for line in plain.splitlines())
        self.trains(self.file("rna.fa", rna))
        self.assertRegex(self.result.stdout, r"2\d\.\d% of the letters are not A, C, G or T .*U of RNA.*mask_degenerate_bases=false")
        self.trains("rna.fa", "dataset.mask_degenerate_bases=false")
        self.assertNotIn("not A, C, G or T", self.result.stdout)

    def test_a_link_and_a_relative_path(self):
        (self.folder / "link.fa").symlink_to("small.fa")
        self.assertEqual(self.trains("link.fa"), self.trains(self.fasta))
        self.refused(
            "twice", "train", *program.tiny(f"{self.fasta},{self.folder}/link.fa", self.folder / "x")
        )

    def test_longer_than_a_window(self):
        self.rejected(
            ["record 0 (record0)", "dataset.max_seq_length = 32", "dataset.stride"],
            self.fasta,
            "dataset.stride=null",
        )


if __name__ == "__main__":
    program.main()
