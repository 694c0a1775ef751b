"""Keys and values that cannot be: an error names key, value and place; nothing is made."""

import json
import os
import pathlib
import resource
import shutil

import program

K = "config_kwargs"

# Overrides (blank between several) and what the message must hold beside them.
REFUSED = [
    ("dataset.stride=30", ["dataset.stride = 30", "dataset.max_seq_length - 2 = 30"]),
    ("dataset.max_seq_lenght=3", ["dataset.max_seq_lenght", "did you mean dataset.max_seq_length"]),
    ("optimizer.lr=3", ["optimizer", "did you mean adamw_kwargs.lr?"]),
    ("hidden_size=64", ["unknown key hidden_size", f"did you mean {K}.hidden_size?"]),
    ("num_local_experts=8", [f"did you mean {K}.num_local_experts?"]),
    ("max_seq_length=64", ["did you mean dataset.max_seq_length?"]),
    ("device=gpu", ["device = gpu", "did you mean cuda?"]),
    ("dtype=bfloat16", ["dtype = bfloat16", "did you mean bf16?"]),
    ("num_train_steps=abc", ["num_train_steps = abc", "whole number"]),
    ("num_train_steps=1.5", ["num_train_steps = 1.5", "whole number"]),
    ("num_train_steps=-1", ["num_train_steps = -1"]),
    ("num_train_steps=99999999999999999999", ["64 bits"]),
    ("num_train_steps=", ["num_train_steps"]),
    ("seed=-1", ["seed = -1"]),
    ("adamw_kwargs.lr=nan", ["adamw_kwargs.lr = nan"]),
    ("adamw_kwargs.lr=inf", ["adamw_kwargs.lr = inf"]),
    ("adamw_kwargs.lr=1e400", ["adamw_kwargs.lr = 1e400"]),
    ("adamw_kwargs.lr=-1", ["adamw_kwargs.lr = -1"]),
    ("adamw_kwargs.betas=[0.9]", ["adamw_kwargs.betas"]),
    ("adamw_kwargs.betas=[0.9,1]", ["adamw_kwargs.betas[1] = 1"]),
    ("dataset=3", ["dataset = 3", "map"]),
    ("dataset.path.name=3", ["dataset.path"]),
    ("dtype=fp16", ["dtype = fp16", "fp32, bf16"]),
    ("adamw_kwargs.betas=[0.9,0.9999999999]", ["adamw_kwargs.betas[1] = 0.9999999999", "fp32"]),
    ("adamw_kwargs.eps=1e-60", ["adamw_kwargs.eps = 1e-60", "fp32"]),
    ("clip_grad_norm=1e-50", ["clip_grad_norm = 1e-50", "fp32"]),
    ("clip_grad_norm=1e39", ["clip_grad_norm = 1e+39", "fp32"]),
    ("dataset.prefetch_factor=4294967297", ["dataset.prefetch_factor = 4294967297", "at most"]),
    ("dataset.num_workers=4294967297", ["dataset.num_workers = 4294967297", "at most 1024"]),
    # Contradictions.
    ("dataset.token_micro_batch_size=64", ["dataset.token_micro_batch_size = 64", "use_sequence_packing"]),
    ("use_sequence_packing=true dataset.token_micro_batch_size=8", ["dataset.token_micro_batch_size = 8"]),
    (
        "use_sequence_packing=true dataset.token_micro_batch_size=40 dataset.pad_sequences_to_be_divisible_by=7",
        ["dataset.token_micro_batch_size = 40", "dataset.pad_sequences_to_be_divisible_by = 7"],
    ),
    ("num_train_steps=0 time_budget_minutes=null", ["num_train_steps = 0", "time_budget_minutes"]),
    ("fusion=strict", ["fusion = strict", "expert_ffn_mode"]),
    ("fusion=strict expert_ffn_mode=loop", ["fusion = strict", "loop"]),
    ("router.topk_groups=2", ["router.topk_groups = 2", "router.num_groups = 1"]),
    (f"{K}.output_router_logits=false {K}.router_aux_loss_coef=0.1", [f"{K}.router_aux_loss_coef = 0.1", f"{K}.output_router_logits=true"]),
    (f"{K}.dtype=bfloat16", [f"{K}.dtype", "dtype = fp32"]),
    ("dataset.split_samples_in_token_packing=false", ["split_samples_in_token_packing", "use_sequence_packing"]),
    ("optimizer_store_param_remainders=true", ["optimizer_store_param_remainders = true", "dtype = bf16", "fp32"]),
    (
        "dtype=bf16 optimizer_store_param_remainders=true optimizer_master_weights=false",
        ["optimizer_store_param_remainders = true", "optimizer_master_weights"],
    ),
    ("grad_dtype=fp16", ["grad_dtype = fp16", "bf16"]),
    ("adamw_kwargs.state_dtype=fp8", ["adamw_kwargs.state_dtype = fp8", "bf16"]),
    ("validation.enabled=true validation.data_path=x.fa", ["validation.data_path", "validation.fraction"]),
    # What this build does not do.
    ("device=cuda", ["device = cuda", "GPU"]),
    ("cuda_graph=on", ["cuda_graph = on (command line)"]),
    (
        "fp8_config.quantized_model_init_kwargs.enabled=true",
        ["fp8_config.quantized_model_init_kwargs.enabled = true", "fp8_config.enabled"],
    ),
    ("fp8_config.enabled=true fp8_config.fp8_recipe=NVFP4BlockScaling", ["fp8_recipe = NVFP4BlockScaling", "MXFP8BlockScaling"]),
    (
        "fp8_config.enabled=true +fp8_config.fp8_recipe_kwargs.margin=1",
        ["fp8_config.fp8_recipe_kwargs.margin = 1", "MXFP8BlockScaling"],
    ),
    ("layer_precision=[fp8,fp8]", ["layer_precision", "fp8_config.enabled"]),
    ("fp8_config.enabled=true layer_precision=[fp8,fp8]", ["error: layer_precision = [fp8, fp8] (command line) lists 2", "num_hidden_layers = 1"]),
    ("parallelism.ep_size=2", ["parallelism.ep_size = 2"]),
    ("parallelism.dp_size=2", ["parallelism.dp_size = 2"]),
    ("profiler.enabled=true", ["profiler.enabled = true"]),
    ("profiler.end_step=20", ["profiler.end_step = 20"]),
    ("dataset.format=parquet", ["dataset.format = parquet"]),
    ("kernels.grouped_gemm=nonsense", ["kernels.grouped_gemm = nonsense", "cpu_loop"]),
    ("device=cpu kernels.gemm=cublaslt", ["kernels.gemm = cublaslt (command line)", "another device", "cpu_packed, cpu_naive"]),
    ("kernels.grouped_gem=cpu_loop", ["kernels.grouped_gem", "grouped_gemm"]),
    # Models that cannot be.
    (f"{K}.num_attention_heads=3", ["hidden_size = 16", "num_attention_heads = 3"]),
    (f"{K}.num_key_value_heads=3", ["num_key_value_heads = 3"]),
    (f"{K}.num_experts_per_tok=5", ["error: num_experts_per_tok = 5", "num_local_experts = 4 (num_experts_per_tok: command line; num_local_experts: /"]),
    (f"{K}.head_dim=3", ["head_dim = 3"]),
    (f"{K}.hidden_size=0", [f"{K}.hidden_size = 0"]),
    (f"{K}.hidden_size=1e3", [f"{K}.hidden_size", "whole number"]),
    (f"{K}.hidden_sise=3", [f"{K}.hidden_sise", "did you mean hidden_size"]),
    (f"{K}.vocab_size=10", [f"{K}.vocab_size = 10", "dataset.tokenizer = nucleotide"]),
    (f"{K}.eos_token_id=2", ["eos_token_id = 2", "dataset.tokenizer"]),
    (f"{K}.max_position_embeddings=16", ["dataset.max_seq_length = 32 (command line)", "max_position_embeddings = 16 (command line)"]),
    (f"{K}.hidden_act=gelu", ["hidden_act = gelu"]),
    (f"{K}.attention_bias=true", ["attention_bias = true"]),
    (f"{K}.attention_dropout=0.1", ["attention_dropout = 0.1"]),
    (f"{K}.rope_parameters.rope_type=yarn", ["rope_type = yarn"]),
    (f"{K}.sliding_window=0", ["sliding_window = 0"]),
    (f"{K}.rope_theta=1e-300", ["rope_theta = 1e-300", "at least 1"]),
    (f"{K}.rms_norm_eps=1e300", ["rms_norm_eps = 1e+300", "fp32"]),
    (f"{K}.initializer_range=1e300", ["initializer_range = 1e+300", "fp32"]),
    # Sizes that overflow, or that no machine holds.
    (f"{K}.hidden_size=1000000000000", ["hidden_size = 1000000000000", "too large"]),
    (f"{K}.num_hidden_layers=100000000", ["num_hidden_layers = 100000000", "too large"]),
    (f"{K}.vocab_size=9223372036854775807", ["vocab_size = 9223372036854775807", "too large"]),
    (f"{K}.num_local_experts=100000000", ["num_local_experts = 100000000", "too large"]),
]
# These need to see the data first.
REFUSED_LATER = [
    ("dataset.micro_batch_size=9000000000000", ["dataset.micro_batch_size", "at most"]),
    ("dataset.micro_batch_size=60000000", ["dataset.micro_batch_size", "GiB"]),
    ("grad_acc_steps=100000000000", ["grad_acc_steps = 100000000000", "GiB"]),
    ("dataset.num_workers=64 dataset.prefetch_factor=1000000000", ["dataset.prefetch_factor", "GiB"]),
    ("dataset.num_workers=100000", ["dataset.num_workers = 100000"]),
    (f"{K}.hidden_size=400000 {K}.intermediate_size=400000", ["GiB", "hidden_size"]),
]
ACCEPTED = [
    f"{K}.hidden_size=2 {K}.num_attention_heads=1 {K}.head_dim=2",
    f"{K}.num_local_experts=1 {K}.num_experts_per_tok=1 {K}.intermediate_size=1",
    f"{K}.num_experts_per_tok=4",
    f"{K}.sliding_window=1",
    f"{K}.tie_word_embeddings=true",
    f"{K}.vocab_size=257",
    "dataset.max_seq_length=3 dataset.stride=0 dataset.micro_batch_size=1",
    "grad_acc_steps=200",
    "use_sequence_packing=true dataset.token_micro_batch_size=33",
    "use_sequence_packing=true dataset.pad_sequences_to_be_divisible_by=64",
    "use_sequence_packing=true dataset.token_micro_batch_size=32 dataset.split_samples_in_token_packing=false",
    "dataset.num_workers=0 dataset.buffer_size=1",
    "num_threads=16",
    "kernels.grouped_gemm=cpu_loop",
    "adamw_kwargs.lr=-0",
    "dtype=bf16 activation_checkpointing=full aux_loss.scope=global_batch grad_acc_steps=2",
    "router.num_groups=2 router.topk_groups=1 router.score=sigmoid router.selection_bias=true",
]


class BadConfigurationTest(program.TestCase):
    def setUp(self):
        super().setUp()
        self.fasta = program.write_fasta(self.folder / "small.fa", bases=3000)
        self.arguments = ["train", *program.tiny(self.fasta, self.folder)]

    def test_refused_before_anything_is_made(self):
        for overrides, expected in REFUSED:
            with self.subTest(overrides):
                self.refused(expected, *self.arguments, *overrides.split())
        self.assertFalse((self.folder / "run").exists())

    def test_refused_by_the_data_or_the_memory(self):
        for overrides, expected in REFUSED_LATER:
            with self.subTest(overrides):
                self.refused(expected, *self.arguments, *overrides.split())
        self.assertFalse((self.folder / "run").exists())

    def test_odd_but_possible(self):
        for overrides in ACCEPTED:
            with self.subTest(overrides):
                self.moebius(*self.arguments, *overrides.split(), "checkpoint.resume_from_checkpoint=false")
                losses = [line["loss"] for line in program.metrics(self.folder / "run")]
                self.assertEqual(len(losses), 3)
                self.assertTrue(all(4 < loss < 7 for loss in losses), losses)

    def test_required_keys(self):
        self.refused(["dataset.path", "required"], "train", "--config-name", "my_genome")
        self.refused("config", "train", "--config-name", "L0_sanitty")
        self.refused("L0_sanity", "train", "--config-name", "L0_sanity", "--config", "x.yaml")
        self.refused("--nonsense", "train", "--nonsense")
        for place in ("nowhere", self.fasta):
            self.refused(
                ["--config-path", str(place), "no such directory"],
                "train",
                "--config-path",
                place,
                *self.arguments[1:],
            )
        self.refused("unknown key", *self.arguments, "x" * 100000 + "=1", timeout=10)

    def test_a_file_of_ones_own_with_crlf(self):
        (self.folder / "mine.yaml").write_bytes(
            b"defaults:\r\n  - L0_sanity\r\n  - _self_\r\nnum_train_steps: 7\r\nadamw_kwargs:\r\n  lr: 1.0e-4\r\n"
        )
        out = self.moebius("config", "--config", "mine.yaml").stdout
        self.assertRegex(out, r"(?m)^num_train_steps: 7$")
        (self.folder / "bad.yaml").write_text("defaults:\n  - L0_sanity\nnum_train_step: 7\n")
        self.refused(["num_train_step", "bad.yaml:3", "num_train_steps"], "train", "--config", "bad.yaml")
        self.refused("too large", "train", "--config", "/dev/zero", timeout=10)
        (self.folder / "tab.yaml").write_text("dataset:\n\tpath: x\n")
        self.refused("tab.yaml:2", "train", "--config", "tab.yaml")

    def test_a_model_that_is_not_built(self):
        shipped = json.loads((program.SOURCE_DIR / "configs/models/l0_sanity/config.json").read_text())
        for changes, expected in [
            ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ["rope_type = yarn"]),
            ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling.type = linear"]),
            ({"hidden_act": "gelu"}, ["hidden_act = gelu"]),
            ({"attention_bias": True}, ["attention_bias = true"]),
            ({"model_type": "llama"}, ["llama", "mixtral"]),
            ({"hidden_size": "large"}, ["hidden_size", "whole number"]),
            ({"num_local_experts": None}, ["num_local_experts"]),
            ({"vocab_size": 2**64 - 1}, ["vocab_size = 18446744073709551615", "whole number"]),
            ({"rms_norm_eps": -1}, ["rms_norm_eps = -1"]),
        ]:
            with self.subTest(str(changes)):
                path = self.folder / "config.json"
                path.write_text(json.dumps({**shipped, **changes}))
                plain = [word for word in self.arguments if not word.startswith(f"{K}.hidden_size")]
                self.refused(["config.json", *expected], *plain, f"config_name_or_path={path}")
        deep = '{"a":' * 200000 + "1" + "}" * 200000
        (self.folder / "config.json").write_text(json.dumps(shipped)[:-1] + f', "x": {deep}}}')
        self.refused(["config.json", "nested"], *self.arguments, f"config_name_or_path={self.folder}")
        (self.folder / "config.json").write_text('{"hidden_size": 1,')
        self.refused("config.json:1", *self.arguments, f"config_name_or_path={self.folder}")
        self.refused("config_name_or_path = l0_sanit", *self.arguments, "config_name_or_path=l0_sanit")

    def test_config_says_what_train_would_refuse_of_a_model(self):
        command = ["config", "--config-name", "my_genome", "dataset.path=x.fa"]
        self.assertNotIn("refuses", self.moebius(*command).stderr)
        for override, expected in [
            ("config_kwargs.hiden_size=128", "hidden_size"),
            ("config_kwargs.hidden_size=100", "head_dim"),
            ("layer_precision=[fp8]", "layer_precision"),
        ]:
            with self.subTest(override):
                error = self.moebius(*command, override, "fp8_config.enabled=true").stderr
                self.assertIn("note: train refuses this: ", error)
                self.assertIn(expected, error)

    def test_memory_that_a_limit_does_not_leave(self):
        if b"__asan_init" in pathlib.Path(program.PROGRAM).read_bytes():
            self.skipTest("AddressSanitizer reserves more address space than any limit leaves")
        self.refused(
            ["a step needs up to", "dataset.micro_batch_size"],
            *self.arguments,
            "dataset.micro_batch_size=20000",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)),
        )

    def test_threads_that_the_system_does_not_give(self):
        options = self.as_nobody()
        shutil.copytree(program.SOURCE_DIR / "configs", self.folder / "configs")
        command = ["train", "--config-path", self.folder / "configs", *self.arguments[1:]]
        for overrides, expected in [
            (["num_threads=64"], ["num_threads", "of 64 threads"]),
            (["dataset.num_workers=64"], ["dataset.num_workers = 64"]),
        ]:
            with self.subTest(overrides):
                self.refused(
                    expected,
                    *command,
                    *overrides,
                    timeout=30,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (20, 20)),
                    **options,
                )

    def test_text_that_is_not_utf8(self):
        # config.yaml and the checkpoint could not hold it: nothing may start that can't be saved.
        odd = os.fsencode(self.folder) + b"/g\xe9nome.fa"
        shutil.copy(self.fasta, odd)
        self.refused(["dataset.path", "UTF-8"], *self.arguments, os.fsdecode(b"dataset.path=" + odd))
        self.assertFalse((self.folder / "run").exists())
        # In a folder of files it is one name among others.
        (self.folder / "genomes").mkdir()
        shutil.copy(self.fasta, os.fsencode(self.folder / "genomes") + b"/g\xe9nome.fa")
        self.moebius(*self.arguments, f"dataset.path={self.folder}/genomes")
        inputs = json.loads((self.folder / "run" / "run.json").read_text())["inputs"]
        self.assertIn("nome.fa", inputs[0]["path"])

    def test_keys_of_very_many_parts(self):
        long = ".".join(["x"] * 50000)
        for key in (long, f"{K}.{long}", f"~{long}"):
            self.refused("parts", *self.arguments, key + ("" if key[0] == "~" else "=1"))

    def test_help_of_every_command(self):
        for command in ("train", "config", "forward", "info"):
            self.assertIn("--", self.moebius(command, "--help").stdout)

    def test_an_instruction_set_that_is_none(self):
        self.refused("MOEBIUS_CPU_ISA", "info", env={"MOEBIUS_CPU_ISA": "nonsense"})


if __name__ == "__main__":
    program.main()
