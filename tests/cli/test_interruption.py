"""Signals, readers that go away, kill -9, disks that fill: nothing is lost, and the same command goes on."""

import fcntl
import os
import pty
import random
import resource
import signal
import struct
import subprocess
import termios
import time

import program


def wait_for(stream, text):
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"the program ended without saying {text!r}")


def limit_file_size(size):
    def apply():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return apply


class InterruptionTest(program.TestCase):
    steps = 1200

    def setUp(self):
        super().setUp()
        self.fasta = program.write_fasta(self.folder / "small.fa", bases=8000)
        self.run_arguments = ["train", *program.tiny(self.fasta, self.folder, self.steps)]

    def uninterrupted(self, *more):
        other = self.folder / "other"
        self.moebius("train", *program.tiny(self.fasta, other, self.steps), "logger.frequency=100", *more)
        return program.tensors(other / "checkpoints" / f"step_{self.steps:06}")

    def last_tensors(self):
        return program.tensors(self.folder / "checkpoints" / f"step_{self.steps:06}")

    def test_a_signal_stops_behind_the_step_and_the_same_command_goes_on(self):
        for number, sent in enumerate((signal.SIGINT, signal.SIGTERM)):
            process = self.start(*self.run_arguments)
            wait_for(process.stdout, f"step {20 + 40 * number:>4}/")
            process.send_signal(sent)
            out, error = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, error)
            self.assertIn("stopping after this step", error)
            self.assertIn("the same command goes on from here", out)
        result = self.moebius(*self.run_arguments)
        self.assertIn("resumed from", result.stdout)
        self.assertEqual(self.last_tensors(), self.uninterrupted())
        steps = [line["step"] for line in program.metrics(self.folder / "run")]
        self.assertEqual(steps, list(range(1, self.steps + 1)))

    def test_a_second_signal_ends_it_at_once(self):
        # Nobody reads: the program blocks in a write, and the step never ends.
        for sent in (signal.SIGINT, signal.SIGTERM):
            process = self.start("train", *program.tiny(self.fasta, self.folder, 1000000))
            wait_for(process.stdout, "step")
            time.sleep(1)
            process.send_signal(sent)
            wait_for(process.stderr, "stopping after this step")
            process.send_signal(sent)
            self.assertEqual(process.wait(timeout=10), 128 + sent)
            process.stdout.close()
            process.stderr.close()

    def test_a_reader_that_leaves_stops_it_with_a_checkpoint(self):
        process = self.start("train", *program.tiny(self.fasta, self.folder, 1000000))
        wait_for(process.stdout, "step")
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 1)
        self.assertRegex(error, r"standard output .*stopped after step \d+, saved in .*step_\d+")
        self.assertEqual(error.count("\n"), 1)
        self.assertTrue(list((self.folder / "checkpoints").glob("step_*/trainer.json")))

    def test_config_ends_quietly_when_its_reader_leaves(self):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [program.PROGRAM, "config", "--config-name", "L0_sanity"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, ""))

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            for command in (["config", "--config-name", "L0_sanity"], ["info"], ["train", "--help"]):
                done = subprocess.run(
                    [program.PROGRAM, *command],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=60,
                    check=False,
                )
                self.assertEqual(done.returncode, 1, command)
                self.assertIn("standard output cannot be written", done.stderr)

    def test_ten_kills_change_nothing(self):
        chance = random.Random(11)
        arguments = [*self.run_arguments, "checkpoint.save_every_n_steps=5", "checkpoint.max_checkpoints=2"]
        for _ in range(10):
            process = self.start(*arguments)
            for _ in range(chance.randrange(4, 60)):
                process.stdout.readline()
            time.sleep(chance.random() * 0.02)
            process.kill()
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -signal.SIGKILL)
        result = self.moebius(*arguments)
        self.assertIn("resumed from", result.stdout)
        self.assertNotIn("passed over", result.stderr)
        self.assertEqual(self.last_tensors(), self.uninterrupted())
        steps = [line["step"] for line in program.metrics(self.folder / "run")]
        self.assertEqual(steps, list(range(1, self.steps + 1)))
        left = sorted(path.name for path in (self.folder / "checkpoints").glob("*") if path.name != ".lock")
        self.assertEqual(left, ["step_001195", "step_001200"])

    def test_a_disk_that_fills_leaves_no_half_checkpoint(self):
        # The optimizer's file is the first that does not fit.
        arguments = ["train", *program.tiny(self.fasta, self.folder, 8), "checkpoint.save_every_n_steps=4"]
        for more in ("checkpoint.async_save=true", "checkpoint.async_save=false"):
            result = self.refused(
                ["the checkpoint of step 4 was not written", "File too large", "checkpoint.ckpt_dir"],
                *arguments,
                more,
                preexec_fn=limit_file_size(60000),
            )
            self.assertEqual(list((self.folder / "checkpoints").glob("step_*")), [])
            self.assertNotIn("checkpoints/step_", result.stdout)  # announced when it is whole, not before
        self.moebius(*arguments)
        self.assertTrue((self.folder / "checkpoints" / "step_000008" / "trainer.json").is_file())

    def test_metrics_that_do_not_fit_are_an_error_and_the_run_goes_on_later(self):
        arguments = ["train", *program.tiny(self.fasta, self.folder, 30), "checkpoint.save_every_n_steps=1000"]
        self.refused(["metrics.jsonl", "File too large"], *arguments, preexec_fn=limit_file_size(9000))
        self.moebius(*arguments)
        self.assertEqual([line["step"] for line in program.metrics(self.folder / "run")], list(range(1, 31)))

    def test_closed_standard_streams_go_to_no_file(self):
        # The first file that is opened would get the number, and with it what is printed.
        def close(*streams):
            def apply():
                for stream in streams:
                    os.close(stream)

            return apply

        for streams, code in (((0,), 0), ((1,), 1), ((2,), 0), ((0, 1, 2), 1)):
            with self.subTest(streams):
                folder = self.folder / "".join(map(str, streams))
                arguments = program.tiny(self.fasta, folder, 4)
                done = subprocess.run(
                    [program.PROGRAM, "train", *map(str, arguments), "checkpoint.save_every_n_steps=1"],
                    preexec_fn=close(*streams),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=60,
                    check=False,
                )
                self.assertEqual(done.returncode, code)
                self.assertEqual((folder / "run" / ".lock").read_bytes(), b"")
                self.assertTrue(all("loss" in line for line in program.metrics(folder / "run")))
                self.assertIn("resumed from", self.moebius("train", *program.tiny(self.fasta, folder, 6)).stdout)
        # What a signal prints goes nowhere either.
        process = subprocess.Popen(
            [program.PROGRAM, "train", *map(str, program.tiny(self.fasta, self.folder / "signal", 1000000))],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=close(0, 2),
        )
        wait_for(process.stdout, "step")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        for file in (self.folder / "signal").rglob("*"):
            self.assertTrue(file.is_dir() or b"stopping" not in file.read_bytes(), file)
        done = subprocess.run(
            [program.PROGRAM, "config", "--config-name", "L0_sanity"],
            preexec_fn=close(1),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output cannot be written", done.stderr)

    def test_the_progress_line_fits_the_terminal(self):
        for columns in (120, 80, 40, 12):
            ours, its = pty.openpty()
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            process = subprocess.Popen(
                [
                    program.PROGRAM,
                    "train",
                    *map(str, program.tiny(self.fasta, self.folder / str(columns), 500000)),
                    "logger.frequency=100000",
                    "checkpoint.save_every_n_steps=1000000",
                ],
                stdin=subprocess.DEVNULL,
                stdout=its,
                stderr=subprocess.DEVNULL,
            )
            os.close(its)
            shown = b""
            while shown.count(b"\r") < 50:
                shown += os.read(ours, 65536)
            process.kill()
            process.wait(timeout=60)
            os.close(ours)
            lines = [line.removesuffix("\x1b[K") for line in shown.decode().split("\r")[1:-1]]
            lines = [line for line in lines if line.startswith("step")]
            self.assertGreater(len(lines), 20)
            self.assertLess(max(map(len, lines)), columns, lines[0])
            self.assertEqual("loss" in lines[0], columns >= 40, lines[0])
            self.assertEqual("lr" in lines[0], columns >= 120, lines[0])

    def test_two_runs_in_one_folder(self):
        process = self.start("train", *program.tiny(self.fasta, self.folder, 1000000))
        wait_for(process.stdout, "step")
        self.refused(["logger.run_dir", "in use by another run"], *self.run_arguments)
        self.refused(
            ["checkpoint.ckpt_dir", "in use by another run"],
            *self.run_arguments,
            f"logger.run_dir={self.folder}/elsewhere",
        )
        self.refused(
            "in use by another run", *self.run_arguments, "checkpoint.resume_from_checkpoint=false"
        )
        self.assertTrue((self.folder / "run" / "run.json").is_file())
        process.kill()
        process.communicate(timeout=60)
        # Whoever is killed holds nothing.
        self.moebius("train", *program.tiny(self.fasta, self.folder, 5))


if __name__ == "__main__":
    program.main()
