// The whole configuration of a training run as plain structs. Defaults stand here; meaning, help text and
// checks of each key stand once in schema.cpp. Names of things that registries hold stay strings: train/
// resolves them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moebius::config {

// A value whose type another file decides (a config.json, a recipe): JSON text, and where the user wrote it.
struct Literal {
    std::string json;
    std::string place;
    bool operator==(const Literal& other) const { return json == other.json; }
};
using Literals = std::map<std::string, Literal>;  // dotted key → value

struct Parallelism {
    int64_t dp_size = 1;
    int64_t ep_size = 1;
};

struct QuantizedModelInit {
    bool enabled = false;
    bool preserve_high_precision_init_val = false;
};

struct Fp8Config {
    bool enabled = false;
    std::string fp8_recipe = "MXFP8BlockScaling";
    std::string fp8_format = "E4M3";
    Literals fp8_recipe_kwargs;
    std::string keep_weights = "auto";
    QuantizedModelInit quantized_model_init_kwargs;
};

struct Fp8Stats {
    bool enabled = false;
};

struct AuxLoss {
    std::string definition = "auto";
    std::string scope = "micro_batch";
};

struct Router {
    std::string score = "softmax";
    bool selection_bias = false;
    double bias_update_rate = 1e-3;
    int64_t num_groups = 1;
    int64_t topk_groups = 1;
    double z_loss_coeff = 0.0;
};

struct Dataset {
    std::string path;
    std::string format = "auto";
    std::string text_column = "text";
    std::string tokenizer = "nucleotide";
    int64_t micro_batch_size = 8;
    std::optional<int64_t> token_micro_batch_size;
    int64_t max_seq_length = 8192;
    std::optional<int64_t> stride = 200;  // the overlap of two windows; null: no windows
    int64_t buffer_size = 50000;          // windows
    int64_t num_workers = 4;
    int64_t prefetch_factor = 4;
    bool mask_degenerate_bases = true;
    bool uppercase_labels = false;
    bool split_samples_in_token_packing = true;
    std::optional<int64_t> pad_sequences_to_be_divisible_by;
};

struct AdamWKwargs {
    double lr = 3e-3;
    std::array<double, 2> betas = {0.9, 0.95};
    double eps = 1e-5;
    double weight_decay = 0.1;
    std::string state_dtype = "fp32";
};

struct LrSchedulerKwargs {
    std::optional<int64_t> num_warmup_steps = 2000;   // null: see warmup_steps()
    std::optional<int64_t> num_decay_steps = 498000;  // null: see decay_steps()
    double min_lr_ratio = 1e-6;
};

struct Checkpoint {
    std::string ckpt_dir;  // load() replaces null by <logger.run_dir>/checkpoints
    int64_t save_every_n_steps = 50;
    bool save_final_model = true;
    bool resume_from_checkpoint = true;
    int64_t max_checkpoints = 5;
    bool async_save = true;
};

struct Logger {
    int64_t frequency = 100;
    std::string run_dir;  // load() replaces null by runs/<config name>[-<name of the data>]
};

struct Validation {
    bool enabled = false;
    int64_t eval_interval = 500;
    int64_t num_batches = 10;
    std::optional<std::string> data_path;
    std::optional<double> fraction;
};

struct Profiler {
    bool enabled = false;
    int64_t start_step = 10;
    int64_t end_step = 15;
};

inline constexpr int64_t kNotGiven = -1;

struct TrainConfig {
    std::string config_name_or_path;
    Literals config_kwargs;
    int64_t num_train_steps = kNotGiven;  // 0: chosen from the data and time_budget_minutes
    int64_t grad_acc_steps = 1;
    int64_t seed = 42;
    std::optional<double> time_budget_minutes;
    std::string dtype = "fp32";
    std::string grad_dtype = "fp32";
    std::string device = "auto";
    int64_t num_threads = 0;  // 0: chosen
    Parallelism parallelism;
    std::string expert_ffn_mode = "grouped_linear";
    std::string fusion = "auto";
    std::string activation_checkpointing = "none";
    std::string cuda_graph = "auto";
    std::map<std::string, std::string> kernels;  // op → variant
    Fp8Config fp8_config;
    std::optional<std::vector<std::string>> layer_precision;
    bool optimizer_master_weights = true;
    bool optimizer_store_param_remainders = false;
    std::optional<std::string> init_from_pretrained;
    bool spike_no_more_embedding_init = false;
    bool use_megatron_scaled_init = false;
    bool use_weight_decay_grouping = true;
    bool skip_embedding_weight_decay = true;
    double clip_grad_norm = 1.0;
    AuxLoss aux_loss;
    Router router;
    bool use_sequence_packing = false;
    Dataset dataset;
    AdamWKwargs adamw_kwargs;
    LrSchedulerKwargs lr_scheduler_kwargs;
    Checkpoint checkpoint;
    Logger logger;
    Validation validation;
    Profiler profiler;
    Fp8Stats fp8_stats_config;
};

// The schedule's lengths with null filled in for a run of `num_train_steps` > 0 (a number that the trainer
// chose, or the key's): warm-up is then a twentieth of the run, the decay what is left of it.
int64_t warmup_steps(const LrSchedulerKwargs& schedule, int64_t num_train_steps);
int64_t decay_steps(const LrSchedulerKwargs& schedule, int64_t num_train_steps);

}  // namespace moebius::config
