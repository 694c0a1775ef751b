"""Who the program is, what it says of itself, and that it refuses what it does not know."""

import fcntl
import os
import re
import struct
import subprocess
import termios

import program


class ProgramTest(program.TestCase):
    def test_version_names_version_and_commit(self):
        out = self.moebius("--version").stdout
        version = re.search(r"project\(Moebius VERSION ([\d.]+)", (program.SOURCE_DIR / "CMakeLists.txt").read_text())
        self.assertIn(version.group(1), out)
        self.assertRegex(out, r"\b([0-9a-f]{12}|unknown)\b")

    def test_licenses_are_notice_and_table(self):
        out = self.moebius("info", "--licenses").stdout
        self.assertIn((program.SOURCE_DIR / "NOTICE").read_text().strip(), out)
        self.assertIn((program.SOURCE_DIR / "THIRD_PARTY.md").read_text().strip(), out)

    def test_info_names_the_instruction_set_and_the_operations(self):
        out = self.moebius("info").stdout
        self.assertRegex(out, r"baseline|avx2|avx512")
        self.assertIn("grouped_gemm", out)

    def test_info_says_which_variants_never_ran_on_their_card(self):
        out = self.moebius("info").stdout
        self.assertRegex(out, r"grouped_gemm_quantized +sm100 \([^)]*not yet run on such a card\)")
        self.assertNotRegex(out, r"sm90\w* \([^)]*not yet run on such a card\)")

    def test_info_marks_the_variant_that_runs_here(self):
        out = self.moebius("info").stdout
        kind = "cuda_any|sm90|cublaslt" if "variants     on GPU" in out else "cpu"
        for op in ("adamw", "attention", "gemm", "grouped_gemm"):
            self.assertRegex(out, rf"(?m)^  {op} +([^*\n]+, )?\*({kind})[^*\n]*$")

    def test_info_says_what_the_library_picks_for_dense_products_on_a_gpu(self):
        out = self.moebius("info").stdout
        lines = re.findall(r"(?m)^gemm +(\w+): .*cuBLASLt", out)
        self.assertEqual(lines, ["forward", "dgrad", "wgrad"] if "variants     on GPU" in out else [])

    def test_help_of_the_program_and_of_train(self):
        self.assertIn("train", self.moebius("--help").stdout)
        out = self.moebius("train", "--help").stdout
        for key in ("dataset.path", "num_train_steps", "adamw_kwargs.lr", "validation.fraction"):
            self.assertIn(key, out)

    def test_no_command_and_unknown_command(self):
        self.refused("")
        self.refused("trian", "trian")

    def test_unknown_key_is_refused_with_the_nearest(self):
        fasta = program.write_fasta(self.folder / "small.fa", bases=2000)
        self.refused(
            ["dataset.max_seq_lenght", "dataset.max_seq_length"],
            "train",
            *program.small(fasta, self.folder),
            "dataset.max_seq_lenght=100",
        )
        self.assertFalse((self.folder / "run").exists())

    def test_a_closed_pipe_ends_it_quietly(self):
        process = self.start("info", "--licenses")
        head = process.stdout.read(10)
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        process.wait(timeout=30)
        self.assertEqual(len(head), 10)
        self.assertNotIn("terminate", error)

    def test_a_short_run_learns_and_leaves_its_files(self):
        fasta = program.write_fasta(self.folder / "small.fa")
        self.moebius("train", *program.small(fasta, self.folder, steps=3))
        lines = program.metrics(self.folder / "run")
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertEqual(len(losses), 3)
        self.assertTrue(all(0 < loss < 8 for loss in losses), losses)
        self.assertTrue((self.folder / "run" / "run.json").is_file())
        self.assertTrue((self.folder / "checkpoints" / "step_000003" / "model" / "config.json").is_file())

    def test_plain_lines_begin_with_the_first_step(self):
        fasta = program.write_fasta(self.folder / "small.fa", bases=3000)
        out = self.moebius("train", *program.tiny(fasta, self.folder, steps=25), "logger.frequency=10").stdout
        self.assertEqual([int(step) for step in re.findall(r"(?m)^step +(\d+)/25 .* left$", out)], [1, 10, 20, 25])
        # The file of metrics has its windows alone.
        self.assertEqual([line["step"] for line in program.metrics(self.folder / "run")], [10, 20, 25])

    def test_the_progress_line_fits_the_terminal(self):
        fasta = program.write_fasta(self.folder / "small.fa", bases=3000)
        for columns in (100, 56, 20):
            screen, end = os.openpty()
            fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            arguments = [*program.tiny(fasta, self.folder / str(columns), steps=40), "logger.frequency=10"]
            process = subprocess.Popen(
                [program.PROGRAM, "train", *arguments], stdin=subprocess.DEVNULL, stdout=end, cwd=self.folder
            )
            os.close(end)
            out = b""
            try:
                while piece := os.read(screen, 4096):
                    out += piece
            except OSError:
                pass  # how a terminal ends
            os.close(screen)
            self.assertEqual(process.wait(timeout=60), 0)
            lines = [part.split("\x1b[K")[0] for part in out.decode().split("\r") if part.startswith("step ")]
            lines = [line for line in lines if "held-out" not in line]
            self.assertEqual(len(lines), 40)
            self.assertLess(max(map(len, lines)), columns)
            if columns >= 56:
                self.assertRegex(lines[-1], r"^step 40/40  loss \d\.\d{4}  .*tok/s  0m00s left$")
            self.assertEqual("|g|" in lines[-1], columns == 100)

    def test_as_a_plain_user(self):
        fasta = program.write_fasta(self.folder / "small.fa", bases=2000)
        options = self.as_nobody()
        closed = self.folder / "closed"
        closed.mkdir(mode=0o555)
        # The test says nothing unless a plain write fails there for this user.
        plain = subprocess.run(["touch", closed / "x"], capture_output=True, check=False, **options)
        self.assertNotEqual(plain.returncode, 0)
        arguments = [word for word in program.small(fasta, closed) if not word.startswith("checkpoint.")]
        self.refused([str(closed), "ermission"], "train", *arguments, **options)


if __name__ == "__main__":
    program.main()
