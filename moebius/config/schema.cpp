#include "moebius/config/schema.h"

#include <algorithm>
#include <cstdint>

#include "moebius/config/fields.h"

// One row a key. To let this build honour a key, drop `.not_yet` (and `.honoured`) from its row.
namespace moebius::config {
namespace {

constexpr std::string_view kOneRank = "this build trains in one process only";
constexpr std::string_view kNoProfiler = "this build has no profiler hooks";
constexpr std::string_view kNoFormat = "this build reads FASTA only";

template <class Struct>
void group(Visitor& visitor, std::string_view key, std::string_view help, Struct& nested) {
    visitor.enter(key, help);
    fields(visitor, nested);
    visitor.leave();
}

}  // namespace

void fields(Visitor& v, Parallelism& s) {
    v.field({.key = "dp_size",
             .value = &s.dp_size,
             .help = "Data-parallel groups; dp_size * ep_size must equal the number of processes",
             .range = {.at_least = 1},
             .not_yet = kOneRank});
    v.field({.key = "ep_size",
             .value = &s.ep_size,
             .help = "Ranks that share one copy of the experts",
             .range = {.at_least = 1},
             .not_yet = kOneRank});
}

void fields(Visitor& v, QuantizedModelInit& s) {
    v.field(
        {.key = "enabled",
         .value = &s.enabled,
         .help = "Hold the weights that are quantized as codes and fp32 masters alone, not in dtype too"});
    v.field(
        {.key = "preserve_high_precision_init_val",
         .value = &s.preserve_high_precision_init_val,
         .help = "Let their masters begin as the initial weights; false: as what these are when quantized"});
}

void fields(Visitor& v, Fp8Config& s) {
    v.field({.key = "enabled",
             .value = &s.enabled,
             .help =
                 "Quantize the operands of the layers' products: attention's projections and the experts; "
                 "never embedding, norms, router and head"});
    v.field({.key = "fp8_recipe", .value = &s.fp8_recipe, .help = "How operands are scaled"});
    v.field({.key = "fp8_format",
             .value = &s.fp8_format,
             .help = "Element format of the operands; HYBRID: E5M2 for gradients",
             .choices = {"E4M3", "HYBRID"}});
    v.field({.key = "fp8_recipe_kwargs",
             .value = &s.fp8_recipe_kwargs,
             .help = "Options of the recipe, as Transformer Engine names them"});
    v.field(
        {.key = "keep_weights",
         .value = &s.keep_weights,
         .help =
             "Quantize weights once a step and keep them, two bytes a number (on), or for each use (off); "
             "auto: on with grad_acc_steps > 1, on the CPU, and with quantized_model_init_kwargs",
         .choices = {"auto", "on", "off"}});
    group(v, "quantized_model_init_kwargs", "Persistent low-precision weights",
          s.quantized_model_init_kwargs);
}

void fields(Visitor& v, Fp8Stats& s) {
    v.field({.key = "enabled",
             .value = &s.enabled,
             .help = "Write each quantized tensor's amax, scale, and shares of numbers that became zero or "
                     "were cut off to metrics.jsonl"});
}

void fields(Visitor& v, AuxLoss& s) {
    v.field(
        {.key = "definition",
         .value = &s.definition,
         .help =
             "Which load-balancing loss: huggingface (all layers' tokens together, balanced value k), switch "
             "(a layer at a time, summed, balanced value 1); auto: switch if "
             "config_kwargs.moe_aux_loss_coeff "
             "is set, else huggingface",
         .choices = {"auto", "huggingface", "switch"}});
    v.field(
        {.key = "scope",
         .value = &s.scope,
         .help = "Over which tokens the loads are counted; global_batch needs a counting forward pass first",
         .choices = {"micro_batch", "global_batch"}});
}

void fields(Visitor& v, Router& s) {
    v.field({.key = "score",
             .value = &s.score,
             .help = "How logits become scores",
             .choices = {"softmax", "sigmoid"}});
    v.field({.key = "selection_bias",
             .value = &s.selection_bias,
             .help = "A bias per expert that steers the selection only (balancing without a loss)"});
    v.field({.key = "bias_update_rate",
             .value = &s.bias_update_rate,
             .help = "By how much a step moves the selection bias",
             .range = {.at_least = 0}});
    v.field({.key = "num_groups",
             .value = &s.num_groups,
             .help = "Groups of experts for group-limited selection; 1: none",
             .range = {.at_least = 1}});
    v.field({.key = "topk_groups",
             .value = &s.topk_groups,
             .help = "Groups a token may choose experts from",
             .range = {.at_least = 1}});
    v.field({.key = "z_loss_coeff",
             .value = &s.z_loss_coeff,
             .help = "Coefficient of mean(logsumexp(router logits)^2), summed over layers",
             .range = {.at_least = 0}});
}

static void batch_fields(Visitor& v, Dataset& s) {
    v.field({.key = "micro_batch_size",
             .value = &s.micro_batch_size,
             .help = "Windows a micro-batch",
             .range = {.at_least = 1}});
    v.field({.key = "token_micro_batch_size",
             .value = &s.token_micro_batch_size,
             .help = "Tokens a packed micro-batch, in place of micro_batch_size; null: micro_batch_size * "
                     "max_seq_length",
             .range = {.at_least = 2}});
    v.field({.key = "max_seq_length",
             .value = &s.max_seq_length,
             .help = "Tokens a window, with its begin and end tokens",
             .range = {.at_least = 3}});
    v.field(
        {.key = "stride",
         .value = &s.stride,
         .help = "Bases that a window shares with the one before; null: sequences are not cut into windows",
         .range = {.at_least = 0}});
    v.field({.key = "buffer_size",
             .value = &s.buffer_size,
             .help = "Windows in the shuffle buffer",
             .range = {.at_least = 1}});
    v.field({.key = "num_workers",
             .value = &s.num_workers,
             .help = "Threads that make batches ahead; 0: made when they are asked for",
             .range = {.at_least = 0, .at_most = 1024}});
    v.field({.key = "prefetch_factor",
             .value = &s.prefetch_factor,
             .help = "Batches a worker prepares ahead",
             .range = {.at_least = 1, .at_most = INT32_MAX}});
}

void fields(Visitor& v, Dataset& s) {
    v.field(
        {.key = "path",
         .value = &s.path,
         .help = "The training data: a file, a directory of files, a glob, or several of these with commas",
         .required = true});
    v.field({.key = "format",
             .value = &s.format,
             .help = "File format; auto: from the content",
             .choices = {"auto", "fasta", "fastq", "jsonl", "parquet", "store"},
             .not_yet = kNoFormat,
             .honoured = {"auto", "fasta"}});
    v.field({.key = "text_column",
             .value = &s.text_column,
             .help = "The column or key of tabular formats that holds the sequence",
             .not_yet = "this build reads FASTA only, which has no columns"});
    v.field({.key = "tokenizer", .value = &s.tokenizer, .help = "Tokenizer", .choices = {"nucleotide"}});
    batch_fields(v, s);
    v.field({.key = "mask_degenerate_bases",
             .value = &s.mask_degenerate_bases,
             .help = "No loss on labels that are not A C G T a c g t"});
    v.field({.key = "uppercase_labels",
             .value = &s.uppercase_labels,
             .help = "Upper-case the labels, not the input (soft-masked genomes)"});
    v.field(
        {.key = "split_samples_in_token_packing",
         .value = &s.split_samples_in_token_packing,
         .help =
             "What overflows a packed micro-batch starts the next one; false: the micro-batch is padded"});
    v.field({.key = "pad_sequences_to_be_divisible_by",
             .value = &s.pad_sequences_to_be_divisible_by,
             .help = "Pad each packed sequence to a multiple of this",
             .range = {.at_least = 1}});
}

void fields(Visitor& v, AdamWKwargs& s) {
    v.field({.key = "lr", .value = &s.lr, .help = "Peak learning rate", .range = {.at_least = 0}});
    v.field({.key = "betas",
             .value = &s.betas,
             .help = "Decay of the two moments",
             .range = {.at_least = 0, .below = 1}});
    v.field({.key = "eps",
             .value = &s.eps,
             .help = "Added to the root of the second moment",
             .range = {.above = 0}});
    v.field({.key = "weight_decay",
             .value = &s.weight_decay,
             .help = "Decoupled weight decay",
             .range = {.at_least = 0}});
    v.field({.key = "state_dtype",
             .value = &s.state_dtype,
             .help = "Type of the stored moments; bf16 ones are widened, updated in fp32, and rounded once "
                     "to nearest even",
             .choices = {"fp32", "bf16"}});
}

void fields(Visitor& v, LrSchedulerKwargs& s) {
    v.field({.key = "num_warmup_steps",
             .value = &s.num_warmup_steps,
             .help = "Steps of linear warm-up; null: a twentieth of the run",
             .range = {.at_least = 0}});
    v.field({.key = "num_decay_steps",
             .value = &s.num_decay_steps,
             .help = "Steps of cosine decay after the warm-up; null: the rest of the run",
             .range = {.at_least = 0}});
    v.field({.key = "min_lr_ratio",
             .value = &s.min_lr_ratio,
             .help = "Last learning rate over the peak one",
             .range = {.at_least = 0, .at_most = 1}});
}

void fields(Visitor& v, Checkpoint& s) {
    v.field({.key = "ckpt_dir",
             .value = &s.ckpt_dir,
             .help = "Where checkpoints go",
             .required = true,
             .null_means = "checkpoints/ in logger.run_dir"});
    v.field({.key = "save_every_n_steps",
             .value = &s.save_every_n_steps,
             .help = "Steps between two checkpoints",
             .range = {.at_least = 1}});
    v.field({.key = "save_final_model",
             .value = &s.save_final_model,
             .help = "Save the run's last step too where save_every_n_steps does not; false: the steps since "
                     "the last save are lost"});
    v.field({.key = "resume_from_checkpoint",
             .value = &s.resume_from_checkpoint,
             .help = "Go on from the newest whole checkpoint in ckpt_dir, if there is one"});
    v.field({.key = "max_checkpoints",
             .value = &s.max_checkpoints,
             .help = "Checkpoints kept, the newest ones",
             .range = {.at_least = 1}});
    v.field({.key = "async_save", .value = &s.async_save, .help = "Write checkpoints behind the next steps"});
}

void fields(Visitor& v, Logger& s) {
    v.field({.key = "frequency",
             .value = &s.frequency,
             .help = "Steps between two lines of metrics",
             .range = {.at_least = 1}});
    v.field({.key = "run_dir",
             .value = &s.run_dir,
             .help = "Folder of metrics.jsonl, run.json, resolved config",
             .null_means = "runs/<config name>, with -<name of the data> where dataset.path is given on the "
                           "command line"});
}

void fields(Visitor& v, Validation& s) {
    v.field(
        {.key = "enabled", .value = &s.enabled, .help = "Measure the loss on data that is not trained on"});
    v.field({.key = "eval_interval",
             .value = &s.eval_interval,
             .help = "Steps between two validations",
             .range = {.at_least = 1}});
    v.field({.key = "num_batches",
             .value = &s.num_batches,
             .help = "Micro-batches a validation, at most",
             .range = {.at_least = 1}});
    v.field({.key = "data_path", .value = &s.data_path, .help = "Validation data of its own"});
    v.field({.key = "fraction",
             .value = &s.fraction,
             .help = "Share of the training data held out, contiguous, in place of data_path",
             .range = {.above = 0, .at_most = 0.5}});
}

void fields(Visitor& v, Profiler& s) {
    v.field({.key = "enabled",
             .value = &s.enabled,
             .help = "Profile steps start_step to end_step",
             .not_yet = kNoProfiler});
    v.field({.key = "start_step",
             .value = &s.start_step,
             .help = "First profiled step",
             .range = {.at_least = 0},
             .not_yet = kNoProfiler});
    v.field({.key = "end_step",
             .value = &s.end_step,
             .help = "First step after the profiled ones",
             .range = {.at_least = 1},
             .not_yet = kNoProfiler});
}

static void run_fields(Visitor& v, TrainConfig& s) {
    v.field({.key = "config_name_or_path",
             .value = &s.config_name_or_path,
             .help = "The model: a Hugging Face config.json, a directory that holds one, or the name of a "
                     "shipped one",
             .required = true});
    v.field(
        {.key = "config_kwargs", .value = &s.config_kwargs, .help = "Overrides of that config.json's keys"});
    v.field({.key = "num_train_steps",
             .value = &s.num_train_steps,
             .help = "Optimizer steps; 0: chosen from the size of the data and time_budget_minutes",
             .range = {.at_least = 0},
             .required = true});
    v.field({.key = "grad_acc_steps",
             .value = &s.grad_acc_steps,
             .help = "Micro-batches a step and rank",
             .range = {.at_least = 1}});
    v.field({.key = "seed",
             .value = &s.seed,
             .help = "Seed of weights, shuffle and jitter",
             .range = {.at_least = 0}});
    v.field({.key = "time_budget_minutes",
             .value = &s.time_budget_minutes,
             .help = "How long a run may take, where num_train_steps is 0",
             .range = {.above = 0}});
    v.field({.key = "dtype",
             .value = &s.dtype,
             .help = "Type of weights and activations",
             .choices = {"fp32", "bf16"}});
    v.field({.key = "grad_dtype",
             .value = &s.grad_dtype,
             .help =
                 "Type in which gradients are held and accumulated over micro-batches; sums within one are "
                 "fp32 and rounded once",
             .choices = {"fp32", "bf16"}});
    v.field({.key = "device",
             .value = &s.device,
             .help = "Where to run; auto: a GPU where one is visible, the CPU where none is",
             .choices = {"auto", "cpu", "cuda"}});
    v.field({.key = "num_threads",
             .value = &s.num_threads,
             .help = "CPU threads; 0: chosen, and printed",
             .range = {.at_least = 0, .at_most = 1024}});
    group(v, "parallelism", "How ranks share the work", s.parallelism);
}

static void execution_fields(Visitor& v, TrainConfig& s) {
    v.field({.key = "expert_ffn_mode",
             .value = &s.expert_ffn_mode,
             .help = "How the experts run: one product each (the Hugging Face way, to compare with), grouped "
                     "products, "
                     "or the fused grouped MLP",
             .choices = {"loop", "grouped_linear", "fused_grouped_mlp"}});
    v.field({.key = "fusion",
             .value = &s.fusion,
             .help =
                 "Fused operations: where possible (auto), required (strict: an error where layers are not "
                 "fused, or where a variant that fuses on this device refuses them), never (off)",
             .choices = {"auto", "strict", "off"}});
    v.field({.key = "activation_checkpointing",
             .value = &s.activation_checkpointing,
             .help = "What backward computes again in place of keeping it; none: on a GPU the norms' outputs "
                     "and the rows gathered for the experts alone",
             .choices = {"none", "moe", "attention", "full"}});
    v.field({.key = "cuda_graph",
             .value = &s.cuda_graph,
             .help = "Run a step as one CUDA graph, captured in the second; auto: on a GPU, where the model "
                     "allows it",
             .choices = {"auto", "on", "off"}});
    v.field(
        {.key = "kernels", .value = &s.kernels, .help = "Force a variant by name: kernels.<op>=<variant>"});
    group(v, "fp8_config", "Low precision", s.fp8_config);
    v.field({.key = "layer_precision",
             .value = &s.layer_precision,
             .help =
                 "Precision of each layer: fp8 (the recipe of fp8_config) or bf16 (none, also spelled null); "
                 "null: fp8 in all where fp8_config.enabled",
             .choices = {"fp8", "bf16", "null"}});
}

static void weight_fields(Visitor& v, TrainConfig& s) {
    v.field(
        {.key = "optimizer_master_weights",
         .value = &s.optimizer_master_weights,
         .help =
             "Keep fp32 masters of weights that are not fp32; false: bf16 weights are updated in fp32 "
             "and rounded to nearest even, so that steps below half a unit of their last place are lost"});
    v.field({.key = "optimizer_store_param_remainders",
             .value = &s.optimizer_store_param_remainders,
             .help =
                 "Keep the fp32 masters as bf16 weight plus 16-bit remainder: the same masters in 2 bytes a "
                 "parameter in place of 4; weights whose master is a tie round away from zero, not to even"});
    v.field({.key = "init_from_pretrained",
             .value = &s.init_from_pretrained,
             .help = "Start from the weights of this Hugging Face folder"});
    v.field({.key = "spike_no_more_embedding_init",
             .value = &s.spike_no_more_embedding_init,
             .help = "Embeddings from N(0, 1), not tied"});
    v.field({.key = "use_megatron_scaled_init",
             .value = &s.use_megatron_scaled_init,
             .help = "Attention output and down projections from std / sqrt(2 * layers)"});
    v.field({.key = "use_weight_decay_grouping",
             .value = &s.use_weight_decay_grouping,
             .help = "No weight decay on biases and 1-D parameters"});
    v.field({.key = "skip_embedding_weight_decay",
             .value = &s.skip_embedding_weight_decay,
             .help = "No weight decay on embeddings either"});
    v.field({.key = "clip_grad_norm",
             .value = &s.clip_grad_norm,
             .help = "Largest global gradient norm; 0: no clipping",
             .range = {.at_least = 0}});
}

void fields(Visitor& v, TrainConfig& s) {
    run_fields(v, s);
    execution_fields(v, s);
    weight_fields(v, s);
    group(v, "aux_loss", "The load-balancing loss", s.aux_loss);
    group(v, "router", "Routing of tokens to experts", s.router);
    v.field({.key = "use_sequence_packing",
             .value = &s.use_sequence_packing,
             .help = "Pack sequences into a micro-batch without padding; attention stays inside each"});
    group(v, "dataset", "Training data", s.dataset);
    group(v, "adamw_kwargs", "Optimizer", s.adamw_kwargs);
    group(v, "lr_scheduler_kwargs", "Learning rate: linear warm-up, then cosine decay",
          s.lr_scheduler_kwargs);
    group(v, "checkpoint", "Checkpoints", s.checkpoint);
    group(v, "logger", "Metrics", s.logger);
    group(v, "validation", "Validation", s.validation);
    group(v, "profiler", "Profiler", s.profiler);
    group(v, "fp8_stats_config", "Statistics of low precision", s.fp8_stats_config);
}

int64_t warmup_steps(const LrSchedulerKwargs& schedule, int64_t num_train_steps) {
    return schedule.num_warmup_steps.value_or(num_train_steps / 20);
}

int64_t decay_steps(const LrSchedulerKwargs& schedule, int64_t num_train_steps) {
    const int64_t rest = num_train_steps - warmup_steps(schedule, num_train_steps);
    return schedule.num_decay_steps.value_or(std::max<int64_t>(rest, 0));
}

}  // namespace moebius::config
