#include "moebius/train/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "moebius/base/error.h"
#include "moebius/data/source.h"
#include "moebius/ops/registry.h"
#include "moebius/train/control_group.h"
#include "moebius/train/low_precision.h"

namespace moebius::train {

config::Choices registry_choices() {
    config::Choices choices;
    for (const data::TokenizerRow& row : data::tokenizers()) {
        choices["dataset.tokenizer"].emplace_back(row.name);
    }
    choices["fp8_config.fp8_recipe"] = precision::recipe_names();
    for (const ops::OpInfo& op : ops::registry()) {
        choices["kernels"].push_back(op.name);
        for (const ops::VariantInfo& variant : op.variants)
            choices["kernels." + op.name].push_back(variant.name);
    }
    return choices;
}

DType dtype_from(const std::string& name) {
    MOEBIUS_CHECK(name == "fp32" || name == "bf16", "dtype ", name);
    return name == "bf16" ? DType::BF16 : DType::F32;
}

PlaceOptions place_options(const config::TrainConfig& c) {
    return {.dtype = dtype_from(c.dtype),
            .grad_dtype = dtype_from(c.grad_dtype),
            .state_dtype = dtype_from(c.adamw_kwargs.state_dtype),
            .masters = c.optimizer_store_param_remainders ? Masters::Remainders
                       : c.optimizer_master_weights       ? Masters::Float32
                                                          : Masters::None,
            .train = true};
}

models::ModelOptions model_options(const config::TrainConfig& c,
                                   const std::map<std::string, std::string>& places) {
    models::ModelOptions o;
    o.expert_mode = c.expert_ffn_mode == "loop"             ? nn::ExpertMode::Loop
                    : c.expert_ffn_mode == "grouped_linear" ? nn::ExpertMode::GroupedLinear
                                                            : nn::ExpertMode::FusedGroupedMlp;
    o.recompute = c.activation_checkpointing == "moe"         ? nn::Recompute::Moe
                  : c.activation_checkpointing == "attention" ? nn::Recompute::Attention
                  : c.activation_checkpointing == "full"      ? nn::Recompute::Full
                                                              : nn::Recompute::None;
    o.router_score = c.router.score == "sigmoid" ? ops::RouterScore::Sigmoid : ops::RouterScore::Softmax;
    o.num_groups = c.router.num_groups;
    o.topk_groups = c.router.topk_groups;
    o.selection_bias = c.router.selection_bias;
    o.bias_update_rate = c.router.bias_update_rate;
    o.z_loss_coeff = c.router.z_loss_coeff;
    o.aux_loss_definition = c.aux_loss.definition;
    o.spike_no_more_embedding_init = c.spike_no_more_embedding_init;
    o.megatron_scaled_init = c.use_megatron_scaled_init;
    o.decay_embedding = !c.skip_embedding_weight_decay;
    o.low_precision = low_precision_options(c);
    const auto list = places.find("layer_precision");
    if (list != places.end()) o.layer_precision_place = list->second;
    return o;
}

StepOptions step_options(const config::TrainConfig& c, const data::BatchShape& shape) {
    StepOptions o;
    o.micro_batches = c.grad_acc_steps;
    o.shape = shape;
    o.adamw = {.beta1 = static_cast<float>(c.adamw_kwargs.betas[0]),
               .beta2 = static_cast<float>(c.adamw_kwargs.betas[1]),
               .eps = static_cast<float>(c.adamw_kwargs.eps),
               .weight_decay = static_cast<float>(c.adamw_kwargs.weight_decay)};
    o.decay_all = !c.use_weight_decay_grouping;
    o.clip_grad_norm = static_cast<float>(c.clip_grad_norm);
    o.aux_scope = c.aux_loss.scope == "global_batch" ? AuxScope::GlobalBatch : AuxScope::MicroBatch;
    o.fusion = c.fusion == "strict" ? nn::FusionMode::Strict
               : c.fusion == "off"  ? nn::FusionMode::Off
                                    : nn::FusionMode::Auto;
    o.seed = static_cast<uint64_t>(c.seed);
    return o;
}

bool use_cuda_graph(const config::TrainConfig& c, const nn::DecoderOptions& model, const Device& device) {
    if (c.cuda_graph == "off" || device.kind() != DeviceKind::Cuda) return false;
    const std::string reason = why_no_cuda_graph(model);
    if (c.cuda_graph == "on" && !reason.empty()) {
        throw Error(fmt::format("cuda_graph = on is not possible with {} (cuda_graph=auto runs without one)",
                                reason));
    }
    return reason.empty();
}

Schedule schedule(const config::TrainConfig& c, int64_t num_train_steps) {
    return {.peak = c.adamw_kwargs.lr,
            .warmup_steps = config::warmup_steps(c.lr_scheduler_kwargs, num_train_steps),
            .decay_steps = config::decay_steps(c.lr_scheduler_kwargs, num_train_steps),
            .min_ratio = c.lr_scheduler_kwargs.min_lr_ratio};
}

data::LoaderOptions loader_options(const config::TrainConfig& c) {
    const config::Dataset& d = c.dataset;
    data::LoaderOptions o;
    o.grad_acc_steps = c.grad_acc_steps;
    o.micro_batch_size = d.micro_batch_size;
    o.token_micro_batch_size = d.token_micro_batch_size;
    o.use_sequence_packing = c.use_sequence_packing;
    o.split_samples = d.split_samples_in_token_packing;
    o.pad_multiple = d.pad_sequences_to_be_divisible_by;
    o.buffer_size = d.buffer_size;
    o.seed = static_cast<uint64_t>(c.seed);
    o.labels = {.mask_degenerate_bases = d.mask_degenerate_bases, .uppercase = d.uppercase_labels};
    o.num_workers = static_cast<int>(d.num_workers);
    o.prefetch_factor = static_cast<int>(d.prefetch_factor);
    return o;
}

int available_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    // The set has no room for more than 1,024 CPUs.
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const int cpus = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
    // In a container that is given two CPUs' time on a machine of 64, 64 threads would wait for each other.
    const int allowed = control_group_cpus();
    return std::max(1, allowed > 0 ? std::min(cpus, allowed) : cpus);
}

namespace {

// A variant of another device's, by name: refused before an operation needs it.
void check_kernel(const std::string& name, const std::string& variant, const Device& device,
                  const std::string& place) {
    const auto& ops = ops::registry();
    const auto op = std::find_if(ops.begin(), ops.end(), [&](const auto& row) { return row.name == name; });
    if (op == ops.end()) return;
    bool other = false;
    std::vector<std::string> here;
    for (const ops::VariantInfo& row : op->variants) {
        if (row.covers(device.kind(), device.cc())) here.push_back(row.name);
        other = other || (row.name == variant && row.kind != device.kind());
    }
    if (!other) return;
    throw Error(fmt::format("kernels.{} = {}{}: this variant is for another device; for this one: {}", name,
                            variant, place,
                            here.empty() ? "none" : fmt::format("{}", fmt::join(here, ", "))));
}

}  // namespace

void check_device(const config::TrainConfig& c, const Device& device,
                  const std::map<std::string, std::string>& places) {
    const auto place = [&](const std::string& key) {
        const auto found = places.find(key);
        return found == places.end() ? "" : fmt::format(" ({})", found->second);
    };
    for (const auto& [op, variant] : c.kernels) check_kernel(op, variant, device, place("kernels." + op));
    if (device.kind() == DeviceKind::Cpu) {
        if (c.cuda_graph == "on") {
            throw Error(fmt::format("cuda_graph = on{} needs a GPU, but device = {}{} takes the CPU",
                                    place("cuda_graph"), c.device, place("device")));
        }
        return;
    }
    if (c.expert_ffn_mode == "loop") {
        throw Error(
            "expert_ffn_mode = loop reads the experts' counts on the host and runs on the CPU only "
            "(device=cpu); "
            "on a GPU use grouped_linear or fused_grouped_mlp");
    }
}

std::vector<std::string> unused_fp8_keys(const config::Fp8Config& c) {
    std::vector<std::string> lines;
    if (c.enabled) return lines;
    const config::Fp8Config unset;
    const auto unused = [&](const char* key, const std::string& value, const std::string& usual) {
        if (value == usual) return;
        lines.push_back(
            fmt::format("fp8_config.{} = {} changes nothing while fp8_config.enabled = false", key, value));
    };
    unused("fp8_recipe", c.fp8_recipe, unset.fp8_recipe);
    unused("fp8_format", c.fp8_format, unset.fp8_format);
    unused("keep_weights", c.keep_weights, unset.keep_weights);
    if (!c.fp8_recipe_kwargs.empty()) unused("fp8_recipe_kwargs", "{…}", "");
    return lines;
}

std::vector<std::string> unused_kernels(const ForcedVariants& forced, const VariantLog& log) {
    std::vector<std::string> lines;
    for (const auto& [op, variant] : forced) {
        const auto& ran = log.entries();
        if (std::any_of(ran.begin(), ran.end(), [&, &name = op](const auto& e) { return e.op == name; }))
            continue;
        lines.push_back(
            fmt::format("kernels.{0} = {1}: no operation of a step is {0} with these settings", op, variant));
    }
    return lines;
}

void check_aux_loss(const models::Model& model, const config::TrainConfig& c) {
    const auto given = c.config_kwargs.find("router_aux_loss_coef");
    if (given == c.config_kwargs.end() || model.options().aux.coeff > 0) return;
    if (model.config().get_double("router_aux_loss_coef", 0.0) == 0.0) return;
    throw Error(fmt::format(
        "config_kwargs.router_aux_loss_coef = {} counts only with output_router_logits = true, as in "
        "Hugging Face, and it is false: set config_kwargs.output_router_logits=true, or "
        "config_kwargs.moe_aux_loss_coeff in its place",
        given->second.json));
}

std::vector<std::string> keys_beyond_hugging_face(const config::TrainConfig& c) {
    std::vector<std::string> keys;
    if (c.router.score != "softmax") keys.push_back("router.score = " + c.router.score);
    if (c.router.selection_bias) keys.emplace_back("router.selection_bias = true");
    if (c.router.num_groups > 1) keys.push_back(fmt::format("router.num_groups = {}", c.router.num_groups));
    return keys;
}

void check_model_fits_data(const models::Model& model, const data::Tokenizer& tokenizer,
                           const config::Loaded& loaded) {
    const config::TrainConfig& c = loaded.config;
    const config::ModelConfig& m = model.config();
    if (model.options().vocab < tokenizer.vocab_size()) {
        throw Error(fmt::format(
            "config_kwargs.vocab_size = {} is smaller than the {} tokens of dataset.tokenizer = {}",
            model.options().vocab, tokenizer.vocab_size(), c.dataset.tokenizer));
    }
    const auto check = [&](const char* key, int32_t id) {
        const int64_t value = m.get_int(key, id);
        if (value != id) {
            throw Error(
                fmt::format("{} = {} ({}), but dataset.tokenizer = {} uses {} (set config_kwargs.{}={})", key,
                            value, m.place_of(key), c.dataset.tokenizer, id, key, id));
        }
    };
    check("pad_token_id", tokenizer.pad());
    check("bos_token_id", tokenizer.bos());
    check("eos_token_id", tokenizer.eos());
    const int64_t longest = m.get_int("max_position_embeddings", c.dataset.max_seq_length);
    if (c.dataset.max_seq_length > longest) {
        throw Error(fmt::format(
            "dataset.max_seq_length = {} ({}) exceeds config_kwargs.max_position_embeddings = {} ({})",
            c.dataset.max_seq_length, loaded.place_of("dataset.max_seq_length"), longest,
            m.place_of("max_position_embeddings")));
    }
}

}  // namespace moebius::train
