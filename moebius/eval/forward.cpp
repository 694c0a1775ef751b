#include "moebius/eval/forward.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "moebius/base/checked.h"
#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/checkpoint/safetensors.h"
#include "moebius/comm/registry.h"
#include "moebius/eval/evaluator.h"

namespace moebius::eval {
namespace {

using checkpoint::SafetensorsReader;

// A batch as Hugging Face takes it, flattened.
struct Input {
    Shape shape;  // of input_ids
    std::vector<int32_t> tokens, targets, positions, cu_seqlens;
    int64_t max_seqlen = 0, labels = 0;
    bool has_labels = false, none_empty = true;
};

std::vector<int32_t> read_integers(const SafetensorsReader& file, const std::string& name) {
    const checkpoint::TensorInfo& info = file.at(name);
    std::vector<int32_t> values(static_cast<size_t>(info.shape.numel()));
    file.read(info, 0, info.shape.numel(), View(values.data(), DType::I32, {info.shape.numel()}));
    return values;
}

void set_borders(Input& in, const SafetensorsReader& file) {
    const int64_t tokens = in.shape.numel();
    if (file.find("cu_seqlens") == nullptr) {
        const int64_t length = in.shape[in.shape.rank() - 1];
        for (int64_t at = 0; at <= tokens; at += length) in.cu_seqlens.push_back(static_cast<int32_t>(at));
        return;
    }
    in.cu_seqlens = read_integers(file, "cu_seqlens");
    const bool ascending = std::is_sorted(in.cu_seqlens.begin(), in.cu_seqlens.end());
    if (in.cu_seqlens.empty() || in.cu_seqlens.front() != 0 || in.cu_seqlens.back() != tokens || !ascending) {
        throw Error(fmt::format("{}: cu_seqlens must ascend from 0 to the number of tokens, {}",
                                file.path().string(), tokens));
    }
}

// A tensor that is passed over would be taken for one that counts, as attention_mask does elsewhere. Results
// may stand beside the batch that they belong to, with those of an update behind it.
void refuse_unknown(const SafetensorsReader& file) {
    constexpr std::string_view kInputs[] = {"input_ids", "labels", "cu_seqlens"};
    constexpr std::string_view kResults[] = {"logits",       "loss", "aux_loss",   "router_logits",
                                             "topk_indices", "grad", "loss_after", "param_after"};
    for (const checkpoint::TensorInfo& info : file.tensors()) {
        const std::string first = info.name.substr(0, info.name.find('.'));
        if (std::find(std::begin(kInputs), std::end(kInputs), info.name) != std::end(kInputs)) continue;
        if (std::find(std::begin(kResults), std::end(kResults), first) != std::end(kResults)) continue;
        throw Error(
            fmt::format("{}: {} is none of the tensors that count: {} (packed sequences take the "
                        "place of padding)",
                        file.path().string(), info.name, fmt::join(kInputs, ", ")));
    }
}

Input read_input(const ForwardOptions& o, const nn::DecoderOptions& model) {
    const SafetensorsReader file(checkpoint::real_file_system(), o.input);
    refuse_unknown(file);
    Input in;
    in.shape = file.at("input_ids").shape;
    if (in.shape.rank() < 1 || in.shape.rank() > 2 || in.shape.numel() == 0) {
        throw Error(fmt::format("{}: input_ids is {}, not (batch, sequence) or (tokens)", o.input.string(),
                                in.shape.str()));
    }
    if (in.shape.numel() > INT32_MAX) {
        throw Error(fmt::format("{}: input_ids has {} tokens; a batch holds at most {}", o.input.string(),
                                in.shape.numel(), INT32_MAX));
    }
    in.tokens = read_integers(file, "input_ids");
    for (size_t i = 0; i < in.tokens.size(); ++i) {
        if (in.tokens[i] < 0 || in.tokens[i] >= model.vocab) {
            throw Error(fmt::format("{}: input_ids[{}] = {} is outside the vocabulary of {}",
                                    o.input.string(), i, in.tokens[i], model.vocab));
        }
    }
    set_borders(in, file);
    in.positions.resize(in.tokens.size());
    for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
        const int32_t begin = in.cu_seqlens[s], end = in.cu_seqlens[s + 1];
        in.max_seqlen = std::max<int64_t>(in.max_seqlen, end - begin);
        in.none_empty = in.none_empty && end > begin;
        for (int32_t i = begin; i < end; ++i) in.positions[static_cast<size_t>(i)] = i - begin;
    }
    in.has_labels = file.find("labels") != nullptr;
    if (!in.has_labels) return in;
    const std::vector<int32_t> labels = read_integers(file, "labels");
    if (file.at("labels").shape != in.shape) {
        throw Error(fmt::format("{}: labels are {}, input_ids {}", o.input.string(),
                                file.at("labels").shape.str(), in.shape.str()));
    }
    // The target of a token is the label of the next one in its sequence.
    in.targets.assign(in.tokens.size(), data::kIgnore);
    for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
        for (int32_t i = in.cu_seqlens[s]; i + 1 < in.cu_seqlens[s + 1]; ++i) {
            const int32_t label = labels[static_cast<size_t>(i) + 1];
            if (label != data::kIgnore && (label < 0 || label >= model.vocab)) {
                throw Error(fmt::format("{}: labels[{}] = {} is neither -100 nor in the vocabulary of {}",
                                        o.input.string(), i + 1, label, model.vocab));
            }
            in.targets[static_cast<size_t>(i)] = label;
            if (label != data::kIgnore) ++in.labels;
        }
    }
    return in;
}

// Results on the host, in the order they are written.
class Results : public nn::Observer {
  public:
    explicit Results(const Exec& exec) : staging_(exec) {}

    // `value` lies on the device.
    void add(const std::string& name, Shape shape, const View& value, float factor = 1.0f) {
        Entry entry{name, shape, value.dtype == DType::I32 ? DType::I64 : DType::F32, {}};
        entry.bytes.resize(static_cast<size_t>(bytes_of(entry.dtype, shape.numel())));
        staging_.read(value, [&](const View& piece, int64_t begin) {
            for (int64_t i = 0; i < piece.numel(); ++i) {
                if (piece.dtype == DType::I32) {
                    reinterpret_cast<int64_t*>(entry.bytes.data())[begin + i] = piece.as<int32_t>()[i];
                } else {
                    const float x = factor * (piece.dtype == DType::BF16 ? to_float(piece.as<BF16>()[i])
                                                                         : piece.as<float>()[i]);
                    reinterpret_cast<float*>(entry.bytes.data())[begin + i] = x;
                    if (not_finite_.empty() && !std::isfinite(x)) not_finite_ = name;
                }
            }
        });
        entries_.push_back(std::move(entry));
    }
    void add(const std::string& name, float value) {
        Entry entry{name, {}, DType::F32, std::vector<char>(sizeof value)};
        std::memcpy(entry.bytes.data(), &value, sizeof value);
        entries_.push_back(std::move(entry));
    }
    void record(const std::string& name, const View& value, const Exec&) override {
        add(name, value.shape, value);
    }
    // The first of them with a NaN or an infinity; "" for none.
    const std::string& not_finite() const { return not_finite_; }

    void write(const std::filesystem::path& path) const {
        std::vector<checkpoint::NamedView> tensors;
        for (const Entry& e : entries_) {
            tensors.push_back({e.name, View(const_cast<char*>(e.bytes.data()), e.dtype, e.shape)});
        }
        checkpoint::write_safetensors(checkpoint::real_file_system(), path, tensors, {{"format", "pt"}});
    }

  private:
    struct Entry {
        std::string name;
        Shape shape;
        DType dtype;
        std::vector<char> bytes;
    };
    HostStaging staging_;
    std::vector<Entry> entries_;
    std::string not_finite_;
};

float scalar(const View& view, const Exec& exec) {
    float value = 0;
    copy_to_host(&value, view, exec);
    return value;
}

Tensor upload(const char* name, std::vector<int32_t>& values, const Exec& exec) {
    Tensor tensor = Tensor::empty(name, {static_cast<int64_t>(values.size())}, DType::I32, exec);
    copy_from_host(tensor, values.data(), exec);
    return tensor;
}

void add_gradients(const models::Model& model, int64_t labels, Results& results) {
    const float factor = 1.0f / static_cast<float>(std::max<int64_t>(1, labels));
    // Under the names of every layout: of Hugging Face's modules and of its files.
    std::set<std::string> done;
    for (const checkpoint::NameLayout& layout : model.layouts()) {
        for (const checkpoint::ExportPiece& piece : layout.pieces) {
            if (!done.insert(piece.external_name).second) continue;
            const Parameter* p = model.parameters().find(piece.internal_name);
            const View flat =
                p->main_grad.reshaped({p->main_grad.numel()}).rows(piece.internal_begin, piece.count);
            results.add("grad." + piece.external_name, piece.external_shape, flat, factor);
        }
    }
}

// The results take the place of what is there: not of what they are made from.
void check_output(const ForwardOptions& o) {
    if (o.output.empty()) throw Error("--output is empty; it must name the file to write");
    std::error_code error;
    const auto same = [&](const std::filesystem::path& path) {
        return std::filesystem::equivalent(o.output, path, error);
    };
    const std::string name = o.output.filename().string();
    const bool weights = name.starts_with("model") || name == "config.json";
    if (same(o.input) || same(o.model) || (weights && same(o.model / name))) {
        throw Error(fmt::format("--output {} would be written over {}", o.output.string(),
                                same(o.input) ? "the input" : "a file of the model"));
    }
}

void check_memory(const ForwardOptions& o, int64_t numel) {
    const int64_t each = bits(o.dtype) / 8 + (o.gradients ? 4 : 0);
    const int64_t needed = checked_mul(numel, each);
    if (needed <= o.free_bytes) return;
    constexpr double kGiB = 1 << 30;
    throw Error(fmt::format("{}: {} parameters need {:.2f} GiB in {}{}, {:.2f} GiB are free",
                            o.model.string(), numel, static_cast<double>(needed) / kGiB, name(o.dtype),
                            o.gradients ? " with their gradients" : "",
                            static_cast<double>(o.free_bytes) / kGiB));
}

}  // namespace

ForwardSummary forward(const ForwardOptions& o, const Exec& exec) {
    check_output(o);
    models::Model model(config::ModelConfig::load(o.model.string(), {}), o.model_options);
    Input in = read_input(o, model.options());
    if (o.gradients && in.labels == 0) {
        throw Error(
            fmt::format("{}: --gradients needs a label that counts: not -100, and not the first of "
                        "its sequence, which no token predicts",
                        o.input.string()));
    }
    check_memory(o, model.parameters().numel());
    model.place({.dtype = o.dtype, .train = o.gradients, .gradients_only = true}, exec);
    ForwardSummary summary;
    const checkpoint::ImportReport report = model.load(o.model, exec);
    summary.layout = report.layout;
    const std::string other = models::precision_warning(report, o.model, o.dtype);
    if (!other.empty()) log_warning(other);
    const std::string recipe = models::recipe_warning(report, o.model, model.options());
    if (!recipe.empty()) log_warning(recipe);

    Results results(exec);
    const std::unique_ptr<Communicator> world = make_communicator("self");
    DeviceScalars scalars(exec);
    nn::Run run{.exec = exec,
                .dtype = o.dtype,
                .fusion = o.fusion,
                .scalars = scalars.view,
                .observer = &results,
                .world = world.get()};
    run.pass = {.training = false, .save = o.gradients, .count = true};
    const Tensor tokens = upload("tokens", in.tokens, exec),
                 positions = upload("positions", in.positions, exec);
    const Tensor borders = upload("cu_seqlens", in.cu_seqlens, exec);
    std::vector<int32_t> tokens_in_all{static_cast<int32_t>(in.tokens.size())};
    const Tensor token_count = upload("token_count", tokens_in_all, exec);
    const Tensor targets = in.has_labels ? upload("targets", in.targets, exec) : Tensor();
    run.batch = {.tokens = tokens,
                 .targets = targets,
                 .positions = positions,
                 .cu_seqlens = borders,
                 .token_count = token_count,
                 .max_seqlen = in.max_seqlen,
                 .none_empty = in.none_empty};
    const float labels = static_cast<float>(in.labels);
    copy_from_host(scalars.view.aux_scale, &labels, exec);

    const int64_t count = in.shape.numel(), vocab = model.options().vocab;
    Tensor logits = Tensor::empty("logits", {count, vocab}, DType::F32, exec);
    Tensor token_loss = Tensor::zeros("token_loss", {count}, DType::F32, exec);
    Tensor loss_sum = Tensor::zeros("loss_sum", {1}, DType::F32, exec);
    Tensor aux_loss = Tensor::zeros("aux_loss", {1}, DType::F32, exec);
    Tensor z_loss = Tensor::zeros("z_loss", {1}, DType::F32, exec);
    model.parameters().begin_step();
    nn::DecoderContext context =
        model.decoder().forward({.loss = {.token_loss = token_loss, .loss_sum = loss_sum, .logits = logits},
                                 .aux_loss = aux_loss,
                                 .z_loss = z_loss},
                                run);
    Shape logits_shape = in.shape;
    logits_shape.push_back(vocab);
    results.add("logits", logits_shape, logits.view());
    const nn::AuxLossOptions& aux = model.options().aux;
    const float aux_value = scalar(aux_loss, exec);
    if (in.has_labels) {
        const float mean = scalar(loss_sum, exec) / std::max(1.0f, labels);
        const float loss = mean + aux_value + scalar(z_loss, exec);
        summary.loss = static_cast<double>(loss);
        results.add("loss", loss);
    }
    if (aux.coeff != 0) results.add("aux_loss", aux_value / aux.coeff);
    if (o.gradients) {
        model.decoder().backward(std::move(context), run);
        model.parameters().finish_gradients(exec);
        add_gradients(model, in.labels, results);
    }
    if (!results.not_finite().empty()) {
        log_warning(
            fmt::format("{} has numbers that are not finite, the first such of {}: NaN or infinity "
                        "in the weights of {}, or too large ones",
                        results.not_finite(), o.output.string(), o.model.string()));
    }
    results.write(o.output);
    summary.tokens = count;
    summary.sequences = static_cast<int64_t>(in.cu_seqlens.size()) - 1;
    summary.labels = in.labels;
    return summary;
}

}  // namespace moebius::eval
