"""moebius forward and init_from_pretrained: what does not fit is named, with file and tensor."""

import json
import os
import shutil
import struct

import program


class ForwardTest(program.TestCase):
    def setUp(self):
        super().setUp()
        self.fasta = program.write_fasta(self.folder / "small.fa", bases=3000)
        self.moebius("train", *program.tiny(self.fasta, self.folder, steps=1))
        self.model = self.folder / "checkpoints" / "step_000001" / "model"

    def inputs(self, **entries):
        path = self.folder / "in.safetensors"
        program.write_safetensors(path, entries)
        return ["forward", "--model", self.model, "--input", path, "--output", self.folder / "out.safetensors"]

    def rejected(self, expected, *arguments):
        result = self.refused(expected, *arguments)
        self.assertFalse((self.folder / "out.safetensors").exists())
        return result

    def test_logits_and_gradients(self):
        ids = program.integers([2, 65, 67, 71, 84, 0, 65, 65], [2, 4])
        self.moebius(*self.inputs(input_ids=ids, labels=ids), "--gradients")
        out = program.read_safetensors(self.folder / "out.safetensors")
        self.assertEqual(out["logits"][:2], ("F32", [2, 4, 256]))
        self.assertGreater(struct.unpack("<f", out["loss"][2])[0], 3)
        self.assertIn("grad.lm_head.weight", out)
        self.assertIn("topk_indices.0", out)

    def test_another_precision_than_the_folders_is_said_aloud(self):
        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        self.assertEqual(self.moebius(*arguments).stderr, "")
        self.assertRegex(self.moebius(*arguments, "--dtype", "bf16").stderr, r"warning: .*F32.*bf16")

    def test_another_recipe_than_the_folders_is_said_aloud(self):
        def said(*options):
            return self.moebius(*arguments, *options).stderr

        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        # A folder that was trained without one, or before folders said it, says nothing.
        self.assertEqual(said("--fp8-recipe", "MXFP8BlockScaling"), "")
        keys = ["fp8_config.enabled=true", "fp8_config.fp8_recipe=Float8BlockScaling"]
        self.moebius("train", *program.tiny(self.fasta, self.folder / "low", steps=1), *keys)
        arguments[2] = self.folder / "low" / "checkpoints" / "step_000001" / "model"
        self.assertEqual(said("--fp8-recipe", "Float8BlockScaling"), "")
        trained = r"warning: .*model was trained under Float8BlockScaling \(E4M3\), here it is computed with "
        self.assertRegex(said(), trained + "no recipe")
        self.assertRegex(said("--fp8-recipe", "MXFP8BlockScaling"), trained + r"MXFP8BlockScaling \(E4M3\)")
        self.assertRegex(
            said("--fp8-recipe", "Float8BlockScaling", "--fp8-format", "HYBRID"), trained + r"Float8BlockScaling \(HYBRID\)"
        )

    def test_sequences_too_short_to_predict_anything(self):
        one = program.integers([65], [1, 1])
        self.moebius(*self.inputs(input_ids=one, labels=one))
        out = program.read_safetensors(self.folder / "out.safetensors")
        # The load-balancing loss alone.
        self.assertLess(struct.unpack("<f", out["loss"][2])[0], 0.1)
        self.assertTrue(all(-1e3 < x < 1e3 for x in struct.unpack("<256f", out["logits"][2])))
        (self.folder / "out.safetensors").unlink()
        first = "the first of its sequence"
        self.rejected(["--gradients", first], *self.inputs(input_ids=one, labels=one), "--gradients")
        # Of three sequences the one of two tokens alone has a label that counts.
        ids = program.integers([65, 67, 71, 84], [4])
        borders = program.integers([0, 1, 3, 4], dtype="I32")
        result = self.moebius(*self.inputs(input_ids=ids, labels=ids, cu_seqlens=borders), "--gradients")
        self.assertIn("4 tokens in 3 sequences, 1 labels", result.stdout)

    def test_more_tokens_than_a_batch_holds(self):
        # A sparse file: two GiB that take no room.
        header = b'{"input_ids":{"dtype":"U8","shape":[1,2147483648],"data_offsets":[0,2147483648]}}'
        path = self.folder / "large.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + 2**31)
        self.rejected(
            ["large.safetensors: input_ids has 2147483648 tokens", "at most 2147483647"],
            *("forward", "--model", self.model, "--input", path, "--output", self.folder / "out.safetensors"),
        )

    def test_bad_inputs(self):
        ids = program.integers([65, 67, 71, 84], [1, 4])
        for entries, expected in [
            ({"input_ids": program.integers([65, 256], [1, 2])}, ["input_ids[1] = 256", "vocabulary of 256"]),
            ({"input_ids": program.integers([-1, 65], [1, 2])}, ["input_ids[0] = -1"]),
            ({"input_ids": program.integers([65, 1 << 40], [1, 2])}, ["input_ids", "1099511627776"]),
            ({"input_ids": program.integers([65, 67, 71, 84], [1, 1, 2, 2])}, ["input_ids", "(1, 1, 2, 2)"]),
            ({"input_ids": program.integers([], [1, 0])}, ["input_ids"]),
            ({"input_ids": ("F32", [1, 2], bytes(8))}, ["input_ids", "F32"]),
            ({"labels": ids}, ["input_ids"]),
            ({"input_ids": ids, "attention_mask": ids}, ["attention_mask", "input_ids, labels, cu_seqlens"]),
            ({"input_ids": ids, "labels": program.integers([65, 67, 71, 84], [4])}, ["labels", "(4)", "(1, 4)"]),
            ({"input_ids": ids, "labels": program.integers([0, 300, 0, 0], [1, 4])}, ["labels[1] = 300"]),
            ({"input_ids": ids, "cu_seqlens": program.integers([0, 3, 2, 4], dtype="I32")}, ["cu_seqlens"]),
            ({"input_ids": ids, "cu_seqlens": program.integers([0, 3], dtype="I32")}, ["cu_seqlens", "4"]),
            ({"input_ids": ids, "cu_seqlens": program.integers([1, 4], dtype="I32")}, ["cu_seqlens"]),
        ]:
            with self.subTest(expected):
                self.rejected(["in.safetensors", *expected], *self.inputs(**entries))
        masked = program.integers([-100] * 4, [1, 4])
        self.rejected(["--gradients", "-100"], *self.inputs(input_ids=ids, labels=masked), "--gradients")
        # All labels masked and no gradients: a loss of nothing is 0.
        self.moebius(*self.inputs(input_ids=ids, labels=masked))

    def test_bad_files_and_options(self):
        ids = program.integers([65, 67, 71, 84], [1, 4])
        good = self.inputs(input_ids=ids)
        for place, value, expected in [
            (2, self.folder / "none", ["none"]),
            (2, self.folder, ["config.json"]),
            (4, self.folder / "none.safetensors", ["none.safetensors"]),
            (4, self.folder, [str(self.folder)]),
            (4, self.fasta, ["small.fa"]),
            (6, self.folder / "no" / "out.safetensors", ["out.safetensors", "No such file"]),
            (6, self.folder, [str(self.folder)]),
        ]:
            with self.subTest(f"{good[place - 1]} {value}"):
                self.rejected(expected, *[*good[:place], value, *good[place + 1 :]])
        self.rejected("--output is empty", *good[:6], "")
        self.rejected("--threads -1", *good, "--threads", "-1")
        self.rejected("--threads", *good, "--threads", "99999999")
        self.rejected("--dtype fp8", *good, "--dtype", "fp8")
        for value in ("x", "1.5", "99999999999999"):
            self.rejected(["error: --threads", f"{value} is not a whole number"], *good, "--threads", value)
        self.rejected("--fp8-recipe Float9 is not one of none, MXFP8BlockScaling", *good, "--fp8-recipe", "Float9")
        recipe = ["--fp8-recipe", "DelayedScaling"]
        self.rejected("--fp8-format E5M2 is not one of E4M3, HYBRID", *good, *recipe, "--fp8-format", "E5M2")
        nope = [*good[:2], self.folder / "nope", *good[3:]]
        self.rejected(["--model", "nope is no model folder", "nope/config.json"], *nope)
        unused = self.moebius(*good, "device=cpu", "kernels.add=cpu", "kernels.grouped_gemm_quantized=cpu").stderr
        self.assertRegex(unused, "^warning: kernels.grouped_gemm_quantized = cpu: no operation .*\n$")
        (self.folder / "out.safetensors").unlink()
        self.rejected("--device cuda and device=cpu contradict", *good, "--device", "cuda", "device=cpu")
        kernels = ["kernels.gemm=cpu_naive", "kernels.gemm=cpu_packed"]
        self.rejected("kernels.gemm=cpu_naive and kernels.gemm=cpu_packed contradict", *good, *kernels)
        self.rejected("--fp8-recipe has no name after it", *good, "--fp8-recipe", "")
        self.rejected("--fp8-format HYBRID needs --fp8-recipe", *good, "--fp8-format", "HYBRID")
        self.rejected("--expert-ffn-mode nonsense", *good, "--expert-ffn-mode", "nonsense")
        self.rejected("--model is required", "forward", *good[3:])

    def test_what_the_results_may_not_replace(self):
        good = self.inputs(input_ids=program.integers([65, 67, 71, 84], [1, 4]))
        weights = self.model / "model.safetensors"
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for place, expected in [
            (self.folder / "in.safetensors", "the input"),
            (weights, "a file of the model"),
            (pipe, "no regular file"),
        ]:
            with self.subTest(place):
                self.rejected(["pipe" if place == pipe else "--output", str(place), expected], *good[:6], place)
        self.assertIn("input_ids", program.read_safetensors(self.folder / "in.safetensors"))
        self.assertIn("lm_head.weight", program.read_safetensors(weights))
        self.assertTrue(pipe.is_fifo())

    def test_shapes_that_no_number_holds(self):
        ids = program.integers([65, 67], [1, 2])
        for name in ("labels", "cu_seqlens"):
            with self.subTest(name):
                huge = ("I64", [1 << 62, 4, 0], b"")
                self.rejected([name, "larger than any file"], *self.inputs(**{"input_ids": ids, name: huge}))

    def damaged(self, change):
        """A copy of the model folder whose tensors `change` has been at."""
        copy = self.folder / "changed"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.model, copy)
        tensors = program.read_safetensors(copy / "model.safetensors")
        change(tensors)
        program.write_safetensors(copy / "model.safetensors", tensors)
        return copy

    def test_tensors_that_do_not_fit(self):
        def missing(tensors):
            del tensors["model.layers.0.self_attn.k_proj.weight"]

        def extra(tensors):
            tensors["model.layers.0.self_attn.k_proj.bias"] = ("F32", [8], bytes(32))

        def misshaped(tensors):
            dtype, shape, data = tensors["lm_head.weight"]
            tensors["lm_head.weight"] = (dtype, [shape[1], shape[0]], data)

        def another_type(tensors):
            _, shape, _ = tensors["model.norm.weight"]
            tensors["model.norm.weight"] = ("I64", shape, bytes(8 * shape[0]))

        for change, expected in [
            (missing, ["lacks the tensor model.layers.0.self_attn.k_proj.weight"]),
            (extra, ["model.layers.0.self_attn.k_proj.bias"]),
            (misshaped, ["lm_head.weight", "(16, 256)", "(256, 16)"]),
            (another_type, ["model.norm.weight", "I64"]),
        ]:
            with self.subTest(change.__name__):
                folder = self.damaged(change)
                ids = program.integers([65, 67], [1, 2])
                arguments = self.inputs(input_ids=ids)
                arguments[2] = folder
                self.rejected(expected, *arguments)
                self.refused(
                    [*expected, f"init_from_pretrained = {folder}"],
                    "train",
                    *program.tiny(self.fasta, self.folder / "second"),
                    f"init_from_pretrained={folder}",
                )

    def test_numbers_that_are_not_finite_are_said_aloud(self):
        def nan(tensors):
            dtype, shape, data = tensors["model.norm.weight"]
            tensors["model.norm.weight"] = (dtype, shape, struct.pack("<f", float("nan")) + data[4:])

        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        arguments[2] = self.damaged(nan)
        self.assertRegex(self.moebius(*arguments).stderr, "warning: logits has numbers that are not finite")

    def test_files_that_are_damaged(self):
        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        copy = self.damaged(lambda tensors: None)
        arguments[2] = copy
        self.moebius(*arguments)
        (self.folder / "out.safetensors").unlink()
        weights = copy / "model.safetensors"
        whole = weights.read_bytes()
        for name, data in {
            "cut": whole[:-100],
            "cut in the header": whole[:50],
            "empty": b"",
            "text": b"hello world, this is no model at all",
            "huge header": (1 << 60).to_bytes(8, "little") + whole[8:],
        }.items():
            with self.subTest(name):
                weights.write_bytes(data)
                self.rejected("model.safetensors", *arguments)
        weights.unlink()
        self.rejected([str(copy), "safetensors"], *arguments)

    def test_a_model_that_no_memory_holds(self):
        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        copy = self.damaged(lambda tensors: None)
        config = json.loads((copy / "config.json").read_text())
        large = {"hidden_size": 1 << 16, "intermediate_size": 1 << 20}
        (copy / "config.json").write_text(json.dumps({**config, **large}))
        arguments[2] = copy
        self.rejected([str(copy), "GiB"], *arguments)

    def test_init_from_pretrained_starts_there(self):
        out = self.moebius(
            "train", *program.tiny(self.fasta, self.folder / "b"), f"init_from_pretrained={self.model}"
        ).stdout
        self.assertIn("weights from", out)
        self.assertNotIn("warning", out)
        # Settings that no tensor's shape shows are compared with the folder's config.json.
        out = self.moebius(
            "train",
            *program.tiny(self.fasta, self.folder / "other"),
            f"init_from_pretrained={self.model}",
            "config_kwargs.rope_theta=5000.0",
            "config_kwargs.num_experts_per_tok=1",
        ).stdout
        self.assertRegex(out, r"warning: .*rope_theta = \S+ there, 5000 here, num_experts_per_tok = 2 there, 1 here")
        # Another precision than the file's is said aloud.
        out = self.moebius(
            "train",
            *program.tiny(self.fasta, self.folder / "c"),
            f"init_from_pretrained={self.model}",
            "dtype=bf16",
        ).stdout
        self.assertRegex(out, r"warning: .*F32.*bf16")

    def test_an_untied_model_from_a_tied_folder(self):
        def tie(tensors):
            del tensors["lm_head.weight"]

        folder = self.damaged(tie)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        arguments = self.inputs(input_ids=program.integers([65, 67], [1, 2]))
        arguments[2] = folder
        self.moebius(*arguments)


if __name__ == "__main__":
    program.main()
