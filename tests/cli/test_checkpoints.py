"""Checkpoints from the command line: damaged ones are named and passed over, a changed key is named with both values."""

import shutil
import struct
import subprocess

import program


class CheckpointsTest(program.TestCase):
    def setUp(self):
        super().setUp()
        self.fasta = program.write_fasta(self.folder / "small.fa", bases=3000)
        self.checkpoints = self.folder / "checkpoints"

    def train(self, steps, *more):
        return self.moebius("train", *program.tiny(self.fasta, self.folder, steps), *more)

    def test_damaged_ones_are_named_and_an_older_one_is_used(self):
        self.train(4, "checkpoint.save_every_n_steps=1")
        whole = program.tensors(self.checkpoints / "step_000004")
        newest = self.checkpoints / "step_000004"
        kept = self.folder / "kept"
        shutil.copytree(newest, kept)

        def flip(name):
            data = bytearray((newest / name).read_bytes())
            data[len(data) // 2] ^= 1
            (newest / name).write_bytes(bytes(data))

        damages = {
            "model/model.safetensors": flip,
            "optimizer/optimizer-00000-of-00001.safetensors": lambda name: (newest / name).write_bytes(b"x"),
            "model/config.json": lambda name: (newest / name).unlink(),
            "trainer.json": lambda name: (newest / name).write_text("{}"),
        }
        for name, damage in damages.items():
            with self.subTest(name):
                damage(name)
                result = self.train(4)
                self.assertIn(f"warning: checkpoint {newest} is passed over: {newest}/{name}", result.stderr)
                self.assertIn("step_000003 at step 3", result.stdout)
                self.assertEqual(program.tensors(newest), whole)
                self.assertTrue((newest / name).is_file())

    def test_half_written_and_foreign_folders(self):
        self.train(2)
        for name in ("step_000009", "step_000007.partial", "notes"):
            (self.checkpoints / name).mkdir()
        (self.checkpoints / "step_000008").write_text("a file")
        result = self.train(3)
        self.assertIn("step_000002 at step 2", result.stdout)
        self.assertIn("step_000009 is passed over", result.stderr)
        self.assertIn("step_000008 is passed over", result.stderr)
        self.assertTrue((self.checkpoints / "notes").is_dir())

    def test_a_complete_run_says_so(self):
        self.train(4)
        out = self.train(4).stdout
        for text in ("complete", "step 4 of 4", "num_train_steps=8", "checkpoint.resume_from_checkpoint=false"):
            self.assertIn(text, out)
        self.assertIn("num_train_steps=8", self.train(2).stdout)
        self.assertNotIn("other settings", out)
        # What it was not trained with is said, and another genome's model is not taken for this one's.
        out = self.train(4, "adamw_kwargs.lr=0.25").stdout
        self.assertIn("nothing was trained with these: adamw_kwargs.lr:", out)
        self.assertIn("0.25", out)
        other = program.write_fasta(self.folder / "other.fa", bases=4000, seed=9)
        self.refused(["training data's checksum", "logger.run_dir"], "train", *program.tiny(other, self.folder, 4))

    def test_starting_anew_sets_aside_what_a_run_left_and_nothing_else(self):
        self.train(2)
        mine = self.folder / "mine"
        mine.mkdir()
        (mine / "thesis.txt").write_text("mine")
        out = self.train(2, "checkpoint.resume_from_checkpoint=false").stdout
        self.assertIn("run.old-1", out)
        self.assertTrue((self.folder / "checkpoints.old-1" / "step_000002").is_dir())
        self.train(2, "checkpoint.resume_from_checkpoint=false", f"logger.run_dir={mine}")
        self.assertEqual((mine / "thesis.txt").read_text(), "mine")
        self.assertTrue((self.folder / "checkpoints.old-2" / "step_000002").is_dir())
        # The current directory stays under the user's feet.
        self.refused(
            ["current directory", "checkpoint.resume_from_checkpoint"],
            "train",
            *program.tiny(self.fasta, self.folder),
            "checkpoint.resume_from_checkpoint=false",
            "logger.run_dir=.",
            cwd=mine,
        )

    def test_a_linked_folder_is_set_aside_and_made_anew(self):
        (self.folder / "disk").mkdir()
        (self.folder / "run").symlink_to("disk")
        self.train(2)
        self.train(2, "checkpoint.resume_from_checkpoint=false")
        self.assertTrue((self.folder / "disk" / "run.json").is_file())
        self.assertTrue((self.folder / "disk.old-1" / "run.json").is_file())

    def test_the_last_step_is_saved_where_it_is_due(self):
        self.train(4, "checkpoint.save_every_n_steps=2", "checkpoint.save_final_model=false")
        self.assertTrue((self.checkpoints / "step_000004" / "trainer.json").is_file())
        self.assertIn("complete", self.train(4).stdout)
        self.train(5, "checkpoint.save_final_model=false")
        self.assertFalse((self.checkpoints / "step_000005").exists())

    def test_metrics_that_others_wrote_into(self):
        self.train(2)
        with open(self.folder / "run" / "metrics.jsonl", "a", encoding="ascii") as lines:
            lines.write('{"step":"two"}\n{"step":null}\n[1]\n{"step":1.5}\n{"step"')
        self.train(3)
        self.assertEqual([line["step"] for line in program.metrics(self.folder / "run")], [1, 2, 3])

    def test_metrics_that_cannot_be_read_are_not_lost(self):
        options = self.as_nobody()
        shutil.copytree(program.SOURCE_DIR / "configs", self.folder / "configs")
        command = ["train", "--config-path", self.folder / "configs", *program.tiny(self.fasta, self.folder, 4)]
        self.moebius(*command, "num_train_steps=2", **options)
        metrics = self.folder / "run" / "metrics.jsonl"
        before = metrics.read_text()
        metrics.chmod(0)
        # The test says nothing unless a plain read fails for this user.
        plain = subprocess.run(["cat", metrics], capture_output=True, check=False, **options)
        self.assertNotEqual(plain.returncode, 0)
        self.refused([str(metrics), "ermission"], *command, **options)
        metrics.chmod(0o644)
        self.assertEqual(metrics.read_text(), before)
        self.moebius(*command, **options)
        self.assertEqual([line["step"] for line in program.metrics(self.folder / "run")], [1, 2, 3, 4])

    def test_a_perplexity_beyond_all_numbers(self):
        self.train(
            2,
            "validation.enabled=true",
            "config_kwargs.initializer_range=1000",
            "clip_grad_norm=0",
            "adamw_kwargs.lr=0",
        )
        held_out = [line for line in program.metrics(self.folder / "run") if "val_loss" in line]
        self.assertGreater(held_out[-1]["val_loss"], 720)
        self.assertIsNone(held_out[-1]["val_perplexity"])

    def test_a_changed_key_is_named_with_both_values(self):
        self.train(2)
        before = program.tensors(self.checkpoints / "step_000002")
        other = program.write_fasta(self.folder / "other.fa", bases=3000, seed=8)
        for override, expected in [
            ("config_kwargs.hidden_size=32", ["config_kwargs.hidden_size = 32", "16"]),
            ("config_kwargs.num_local_experts=2", ["config_kwargs.num_local_experts = 2", "4"]),
            ("config_kwargs.rms_norm_eps=0.1", ["config_kwargs.rms_norm_eps = 0.1", "1e-05"]),
            ("router.score=sigmoid", ["router.score", "sigmoid", "softmax"]),
            ("dtype=bf16", ["dtype", "bf16", "fp32"]),
            ("seed=7", ["seed", "42", "7"]),
            ("dataset.stride=5", ["dataset.stride", "4", "5"]),
            ("dataset.max_seq_length=33", ["dataset.max_seq_length", "32", "33"]),
            ("dataset.buffer_size=5", ["dataset.buffer_size", "64", "5"]),
            (f"dataset.path={other}", ["dataset.path", "checksum"]),
        ]:
            with self.subTest(override):
                self.refused(
                    [*expected, "checkpoint.resume_from_checkpoint=false"],
                    "train",
                    *program.tiny(self.fasta, self.folder, 4),
                    override,
                )
        self.assertEqual(program.tensors(self.checkpoints / "step_000002"), before)
        # The same data elsewhere, and other ways to compute the same, are no other run.
        copy = self.folder / "copy.fa"
        shutil.copy(self.fasta, copy)
        self.train(4, f"dataset.path={copy}", "num_threads=3")

    def test_threads_and_saves_change_no_bit(self):
        # The schedule is of the whole run, whatever part of it is asked for.
        schedule = ["lr_scheduler_kwargs.num_warmup_steps=2", "lr_scheduler_kwargs.num_decay_steps=10"]
        for steps, threads in ((2, 3), (3, 1), (6, 2)):
            arguments = program.tiny(self.fasta, self.folder / "parts", steps)
            self.moebius("train", *arguments, f"num_threads={threads}", *schedule)
        self.moebius("train", *program.tiny(self.fasta, self.folder / "whole", 6), *schedule)
        self.assertEqual(
            program.tensors(self.folder / "parts" / "checkpoints" / "step_000006"),
            program.tensors(self.folder / "whole" / "checkpoints" / "step_000006"),
        )

    def test_places_that_cannot_be_folders(self):
        arguments = ["train", *program.tiny(self.fasta, self.folder)]
        for key in ("checkpoint.ckpt_dir", "logger.run_dir"):
            for place in (self.fasta, self.fasta / "below", "/proc/nowhere", self.folder / ("x" * 300)):
                with self.subTest(f"{key}={place}"):
                    self.refused([key, str(place)], *arguments, f"{key}={place}")

    def test_a_closed_checkpoint_folder_as_a_plain_user(self):
        options = self.as_nobody()
        self.checkpoints.mkdir(mode=0o555)
        # The test says nothing unless a plain write fails there for this user.
        plain = subprocess.run(["touch", self.checkpoints / "x"], capture_output=True, check=False, **options)
        self.assertNotEqual(plain.returncode, 0)
        shutil.copytree(program.SOURCE_DIR / "configs", self.folder / "configs")
        self.refused(
            ["checkpoint.ckpt_dir", str(self.checkpoints), "ermission"],
            "train",
            "--config-path",
            self.folder / "configs",
            *program.tiny(self.fasta, self.folder),
            **options,
        )

    def test_a_rate_that_explodes_stops_with_the_state_before(self):
        # Steps 1 and 2 are sane: the warm-up starts at 0.
        result = self.refused(
            ["step 3", "not finite", "record 0 (record0)", "step_000002", "adamw_kwargs.lr"],
            "train",
            *program.tiny(self.fasta, self.folder, 6),
            "adamw_kwargs.lr=1e30",
        )
        self.assertNotIn("step_000003", result.stderr)
        model = program.read_safetensors(self.checkpoints / "step_000002" / "model" / "model.safetensors")
        for name, (_, _, data) in model.items():
            values = struct.unpack(f"<{len(data) // 4}f", data)
            self.assertTrue(all(value == value and abs(value) < 3e38 for value in values), name)


if __name__ == "__main__":
    program.main()
