// Keys that contradict each other, as far as the configuration alone can tell. What needs the data, the model
// or the registries is checked by train/.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "moebius/base/error.h"
#include "moebius/config/apply.h"
#include "moebius/config/scalar.h"

namespace moebius::config {
namespace {

class Contradictions {
  public:
    explicit Contradictions(const Loaded& loaded) : loaded_(loaded), config_(loaded.config) {}

    void check_dataset() const {
        const Dataset& d = config_.dataset;
        if (d.stride && *d.stride >= d.max_seq_length - 2) {
            fail(fmt::format("dataset.stride = {} must be smaller than dataset.max_seq_length - 2 = {}",
                             *d.stride, d.max_seq_length - 2),
                 {"dataset.stride", "dataset.max_seq_length"});
        }
        if (d.token_micro_batch_size && !config_.use_sequence_packing) {
            fail(fmt::format(
                     "dataset.token_micro_batch_size = {} needs use_sequence_packing = true, which is false",
                     *d.token_micro_batch_size),
                 {"dataset.token_micro_batch_size", "use_sequence_packing"});
        }
        if (d.token_micro_batch_size && *d.token_micro_batch_size < d.max_seq_length) {
            fail(fmt::format(
                     "dataset.token_micro_batch_size = {} must be at least dataset.max_seq_length = {}",
                     *d.token_micro_batch_size, d.max_seq_length),
                 {"dataset.token_micro_batch_size", "dataset.max_seq_length"});
        }
        if (d.pad_sequences_to_be_divisible_by && !config_.use_sequence_packing) {
            fail(fmt::format("dataset.pad_sequences_to_be_divisible_by = {} needs use_sequence_packing = "
                             "true, which is "
                             "false",
                             *d.pad_sequences_to_be_divisible_by),
                 {"dataset.pad_sequences_to_be_divisible_by", "use_sequence_packing"});
        }
        if (!d.split_samples_in_token_packing && !config_.use_sequence_packing) {
            fail(
                "dataset.split_samples_in_token_packing = false needs use_sequence_packing = true, which is "
                "false",
                {"dataset.split_samples_in_token_packing", "use_sequence_packing"});
        }
    }

    // config.json's dtype is what the weights of its folder are in; the run's is `dtype` alone.
    void check_model_dtype() const {
        const std::string own = config_.dtype == "bf16" ? "bfloat16" : "float32";
        for (const char* key : {"dtype", "torch_dtype"}) {
            const auto found = config_.config_kwargs.find(key);
            if (found == config_.config_kwargs.end()) continue;
            const std::string& json = found->second.json;
            if (json == "null" || json == '"' + own + '"') continue;
            fail(fmt::format("config_kwargs.{} = {} does not set the run's precision: dtype = {} does", key,
                             json, config_.dtype),
                 {fmt::format("config_kwargs.{}", key), "dtype"});
        }
    }

    void check_validation() const {
        const Validation& v = config_.validation;
        if (v.enabled && !v.data_path && !v.fraction) {
            fail(
                "validation.enabled = true needs validation.fraction or validation.data_path, and both are "
                "null",
                {"validation.enabled"});
        }
        if (v.data_path && v.fraction) {
            fail(fmt::format("validation.data_path = {} and validation.fraction = {} both say what to "
                             "validate on; set "
                             "one of them to null",
                             *v.data_path, double_text(*v.fraction)),
                 {"validation.data_path", "validation.fraction"});
        }
    }

    void check_steps() const {
        if (config_.num_train_steps == 0 && !config_.time_budget_minutes) {
            fail("num_train_steps = 0 (to be chosen) needs time_budget_minutes, which is null",
                 {"num_train_steps", "time_budget_minutes"});
        }
        const Profiler& p = config_.profiler;
        if (p.end_step <= p.start_step) {
            fail(fmt::format("profiler.end_step = {} must be larger than profiler.start_step = {}",
                             p.end_step, p.start_step),
                 {"profiler.end_step", "profiler.start_step"});
        }
    }

    void check_router() const {
        const Router& r = config_.router;
        if (r.topk_groups > r.num_groups) {
            fail(fmt::format("router.topk_groups = {} must not be larger than router.num_groups = {}",
                             r.topk_groups, r.num_groups),
                 {"router.topk_groups", "router.num_groups"});
        }
    }

    void check_weights() const {
        if (config_.expert_ffn_mode != "fused_grouped_mlp" && config_.fusion == "strict") {
            fail(fmt::format("fusion = strict needs expert_ffn_mode = fused_grouped_mlp; {} is never fused",
                             config_.expert_ffn_mode),
                 {"fusion", "expert_ffn_mode"});
        }
        if (config_.device == "cpu" && config_.cuda_graph == "on") {
            fail("cuda_graph = on needs a GPU, but device = cpu", {"cuda_graph", "device"});
        }
        if (config_.optimizer_store_param_remainders && !config_.optimizer_master_weights) {
            fail(
                "optimizer_store_param_remainders = true needs optimizer_master_weights = true, which is "
                "false",
                {"optimizer_store_param_remainders", "optimizer_master_weights"});
        }
        if (config_.optimizer_store_param_remainders && config_.dtype != "bf16") {
            fail(fmt::format(
                     "optimizer_store_param_remainders = true needs dtype = bf16; with {} the weights are "
                     "the masters",
                     config_.dtype),
                 {"optimizer_store_param_remainders", "dtype"});
        }
        if (config_.fp8_config.quantized_model_init_kwargs.enabled && !config_.fp8_config.enabled) {
            fail(
                "fp8_config.quantized_model_init_kwargs.enabled = true needs fp8_config.enabled = true, "
                "which is false",
                {"fp8_config.quantized_model_init_kwargs.enabled", "fp8_config.enabled"});
        }
    }

    void check_low_precision() const {
        const bool enabled = config_.fp8_config.enabled;
        const auto& layers = config_.layer_precision;
        if (layers && !enabled && std::find(layers->begin(), layers->end(), "fp8") != layers->end()) {
            fail("layer_precision names fp8, which needs fp8_config.enabled = true; it is false",
                 {"layer_precision", "fp8_config.enabled"});
        }
        if (layers && layers->empty())
            fail("layer_precision = [] must list every layer, or be null", {"layer_precision"});
        const QuantizedModelInit& init = config_.fp8_config.quantized_model_init_kwargs;
        if (init.preserve_high_precision_init_val && !init.enabled) {
            fail(
                "fp8_config.quantized_model_init_kwargs.preserve_high_precision_init_val = true needs "
                "fp8_config.quantized_model_init_kwargs.enabled = true, which is false",
                {"fp8_config.quantized_model_init_kwargs.preserve_high_precision_init_val"});
        }
        if (init.enabled && config_.dtype != "fp32" &&
            (config_.optimizer_store_param_remainders || !config_.optimizer_master_weights)) {
            fail(fmt::format("fp8_config.quantized_model_init_kwargs.enabled = true needs fp32 masters, but "
                             "optimizer_master_weights = {} and optimizer_store_param_remainders = {}",
                             config_.optimizer_master_weights, config_.optimizer_store_param_remainders),
                 {"fp8_config.quantized_model_init_kwargs.enabled", "optimizer_master_weights",
                  "optimizer_store_param_remainders"});
        }
        if (init.enabled && config_.fp8_config.keep_weights == "off") {
            fail(
                "fp8_config.keep_weights = off contradicts fp8_config.quantized_model_init_kwargs.enabled = "
                "true, which holds weights as codes alone",
                {"fp8_config.keep_weights", "fp8_config.quantized_model_init_kwargs.enabled"});
        }
        if (config_.fp8_stats_config.enabled && !enabled) {
            fail("fp8_stats_config.enabled = true needs fp8_config.enabled = true, which is false",
                 {"fp8_stats_config.enabled", "fp8_config.enabled"});
        }
        for (const char* key : {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}) {
            const auto found = config_.config_kwargs.find(key);
            if (found == config_.config_kwargs.end() || found->second.json == "0") continue;
            const std::string name = fmt::format("config_kwargs.{}", key);
            const std::string shown = fmt::format("{} = {}", name, found->second.json);
            if (!enabled) {
                fail(fmt::format("{} needs fp8_config.enabled = true, which is false", shown),
                     {name, "fp8_config.enabled"});
            }
            if (layers) {
                fail(fmt::format("{} and layer_precision both say which layers are in FP8; leave one out",
                                 shown),
                     {name, "layer_precision"});
            }
        }
    }

    // Computed with in fp32, where a tiny number is 0 and 0.9999999999 is 1.
    void check_single_precision() const {
        const auto& a = config_.adamw_kwargs;
        for (size_t i = 0; i < a.betas.size(); ++i) {
            if (static_cast<float>(a.betas[i]) >= 1.0f) {
                fail(fmt::format("adamw_kwargs.betas[{}] = {} must be below 1 in fp32 too, where it is 1", i,
                                 double_text(a.betas[i])),
                     {"adamw_kwargs.betas"});
            }
        }
        if (static_cast<float>(a.eps) <= 0.0f) {
            fail(fmt::format("adamw_kwargs.eps = {} must be above 0 in fp32 too, where it is 0",
                             double_text(a.eps)),
                 {"adamw_kwargs.eps"});
        }
        if (config_.clip_grad_norm > 0 && static_cast<float>(config_.clip_grad_norm) <= 0.0f) {
            fail(
                fmt::format("clip_grad_norm = {} must be above 0 in fp32 too, where it is 0 (0: no clipping)",
                            double_text(config_.clip_grad_norm)),
                {"clip_grad_norm"});
        }
        for (const auto& [key, value] : {std::pair("adamw_kwargs.lr", a.lr),
                                         {"adamw_kwargs.eps", a.eps},
                                         {"adamw_kwargs.weight_decay", a.weight_decay},
                                         {"clip_grad_norm", config_.clip_grad_norm},
                                         {"router.bias_update_rate", config_.router.bias_update_rate},
                                         {"router.z_loss_coeff", config_.router.z_loss_coeff}}) {
            if (std::isinf(static_cast<float>(value))) {
                fail(fmt::format("{} = {} must be a number that fp32 can hold", key, double_text(value)),
                     {key});
            }
        }
    }

  private:
    [[noreturn]] void fail(const std::string& sentence, const std::vector<std::string>& keys) const {
        std::vector<std::string> places;
        for (const std::string& key : keys)
            places.push_back(fmt::format("{}: {}", key, loaded_.place_of(key)));
        throw Error(fmt::format("{} ({})", sentence, fmt::join(places, "; ")));
    }

    const Loaded& loaded_;
    const TrainConfig& config_;
};

}  // namespace

void check_contradictions(const Loaded& loaded) {
    const Contradictions contradictions(loaded);
    contradictions.check_dataset();
    contradictions.check_model_dtype();
    contradictions.check_validation();
    contradictions.check_steps();
    contradictions.check_router();
    contradictions.check_weights();
    contradictions.check_low_precision();
    contradictions.check_single_precision();
}

}  // namespace moebius::config
