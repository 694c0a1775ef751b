"""A genome of one's own needs one key: the rest is chosen, printed, and kept."""

import json
import re

import program


class MyGenomeTest(program.TestCase):
    def test_one_key(self):
        fasta = program.write_fasta(self.folder / "small.fa", bases=12000)
        arguments = ["train", "--config-name", "my_genome", f"dataset.path={fasta}", "time_budget_minutes=0.05"]
        out = self.moebius(*arguments).stdout
        chosen = re.search(r"num_train_steps = (\d+) chosen: .+", out)
        self.assertIsNotNone(chosen, out)
        steps = int(chosen.group(1))
        self.assertGreater(steps, 0)
        self.assertRegex(out, r"\d+ threads")
        self.assertRegex(out, r"\d+ training windows of 1 files, [1-9]\d* tokens held out")
        self.assertRegex(out, r"held-out loss .*\d+ bases")
        run = self.folder / "runs" / "my_genome-small"
        self.assertIn("runs/my_genome-small", out)
        record = json.loads((run / "run.json").read_text())
        self.assertEqual(record["num_train_steps"], steps)
        self.assertEqual(record["inputs"][0]["path"], str(fasta))
        self.assertTrue(any("val_loss" in line for line in program.metrics(run)))
        self.assertTrue((run / "checkpoints" / f"step_{steps:06}" / "model" / "config.json").is_file())
        # The number that was chosen stays, so that the run is complete, also with another budget, which is said.
        self.assertIn(f"step {steps} of {steps}", self.moebius(*arguments).stdout)
        out = self.moebius(*arguments[:-1], "time_budget_minutes=7").stdout
        self.assertIn("time_budget_minutes = 7.0 changes nothing (it was 0.05)", out)
        self.assertIn(f"the {steps} steps", out)
        # A second genome has a folder of its own.
        other = program.write_fasta(self.folder / "other.fa", bases=12000, seed=8)
        out = self.moebius(*arguments[:3], f"dataset.path={other}", *arguments[4:]).stdout
        self.assertIn("runs/my_genome-other", out)
        self.assertNotIn("resumed", out)

    def test_lower_case_letters_are_labels_that_count_models_do_not_tell_apart(self):
        fasta = program.write_fasta(self.folder / "masked.fa", bases=6000)
        lines = fasta.read_text().splitlines()
        fasta.write_text("\n".join(line.lower() if i % 3 == 0 and line[0] != ">" else line for i, line in enumerate(lines)))
        command = ["train", "--config-name", "my_genome", f"dataset.path={fasta}", "num_train_steps=1"]
        unused = ["fp8_recipe=Float8BlockScaling", "fp8_format=HYBRID", "keep_weights=off"]
        out = self.moebius(*command, *(f"fp8_config.{key}" for key in unused)).stdout
        self.assertIn("not to be compared", out)
        self.assertNotIn("next to nothing", out)
        for key in unused:
            self.assertIn(f"fp8_config.{key.replace('=', ' = ')} changes nothing", out)
        out = self.moebius(*command, "dataset.uppercase_labels=true", "logger.run_dir=other").stdout
        self.assertNotIn("not to be compared", out)
        self.assertNotIn("changes nothing", out)
        self.assertIn("next to nothing", out)

    def test_a_genome_too_small_to_hold_a_part_out(self):
        command = ["train", "--config-name", "my_genome", "time_budget_minutes=0.01"]
        fasta = self.folder / "tiny.fa"
        fasta.write_text(">a\nACGT\n")
        self.assertIn("1 tokens held out", self.moebius(*command, f"dataset.path={fasta}").stdout)
        fasta.write_text(">a\nA\n")
        self.refused(["validation.fraction", "none of the 1 tokens"], *command, f"dataset.path={fasta}")


if __name__ == "__main__":
    program.main()
