#include "moebius/train/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/train/run_folder.h"

namespace moebius::train {
namespace {

using Json = nlohmann::ordered_json;

std::string kept_lines(const std::filesystem::path& path, int64_t keep_through) {
    std::string kept;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return kept;  // a pipe would be waited for
    errno = 0;
    std::ifstream in(path);
    // Replaced by a file without them, its lines would be lost.
    if (!in.is_open()) throw Error(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
    for (std::string line; std::getline(in, line);) {
        // A line cut short by a crash has no step and goes too.
        const Json object = Json::parse(line, nullptr, false);
        const auto step = object.is_object() ? object.find("step") : object.end();
        if (step != object.end() && step->is_number_integer() && step->get<int64_t>() <= keep_through) {
            kept += line + "\n";
        }
    }
    if (in.bad()) throw Error(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
    return kept;
}

}  // namespace

void MetricWindow::add(const StepResult& result, int64_t tokens, int64_t real_tokens, double seconds) {
    ++steps_;
    tokens_ += tokens;
    real_tokens_ += real_tokens;
    loss_ += result.loss;
    seconds_ += seconds;
    counts_.resize(result.expert_counts.size());
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += static_cast<double>(result.expert_counts[i]);
}

double MetricWindow::loss() const {
    return steps_ > 0 ? loss_ / static_cast<double>(steps_) : 0;
}

std::string MetricWindow::to_json() const {
    return Json{{"steps", steps_}, {"tokens", tokens_},   {"real_tokens", real_tokens_},
                {"loss", loss_},   {"seconds", seconds_}, {"expert_counts", counts_}}
        .dump();
}

MetricWindow MetricWindow::parse(const std::string& text) {
    try {
        MetricWindow w;
        const Json json = Json::parse(text);
        w.steps_ = json.at("steps");
        w.tokens_ = json.at("tokens");
        w.real_tokens_ = json.at("real_tokens");
        w.loss_ = json.at("loss");
        w.seconds_ = json.at("seconds");
        w.counts_ = json.at("expert_counts").get<std::vector<double>>();
        return w;
    } catch (const Json::exception& error) {
        throw Error(fmt::format("the checkpoint's metrics cannot be read: {}", error.what()));
    }
}

LayerLoad layer_load(const double* counts, int64_t experts) {
    double total = 0, most = 0;
    for (int64_t e = 0; e < experts; ++e) {
        total += counts[e];
        most = std::max(most, counts[e]);
    }
    LayerLoad load;
    if (total <= 0) return load;
    load.max_over_mean = most * static_cast<double>(experts) / total;
    for (int64_t e = 0; e < experts; ++e) {
        const double share = counts[e] / total;
        if (share > 0) load.entropy -= share * std::log(share);
    }
    return load;
}

std::string metrics_json(const MetricsLine& line) {
    const MetricWindow& w = *line.window;
    const double seconds = std::max(w.seconds(), 1e-9), tokens = static_cast<double>(w.tokens());
    const double flops = line.flops_per_token * tokens / seconds;
    Json json{{"step", line.step},
              {"loss", w.loss()},
              {"perplexity", std::exp(w.loss())},
              {"grad_norm", line.last.grad_norm},
              {"learning_rate", line.learning_rate},
              {"step_time", seconds / static_cast<double>(std::max<int64_t>(1, w.steps()))},
              {"tokens_per_second_per_gpu", tokens / seconds},
              {"unpadded_tokens_per_second_per_gpu", static_cast<double>(w.real_tokens()) / seconds},
              {"total_unpadded_tokens_per_batch",
               static_cast<double>(w.real_tokens()) / static_cast<double>(std::max<int64_t>(1, w.steps()))},
              {"model_tflops_per_gpu", flops / 1e12},
              {"mfu", line.peak_flops > 0 ? Json(flops / line.peak_flops) : Json(nullptr)},
              {"memory_peak_bytes", line.memory.peak_bytes},
              {"memory_current_bytes", line.memory.current_bytes},
              {"memory_system_allocations", line.memory.system_allocations},
              {"data_wait_seconds", line.data_wait_seconds},
              {"aux_loss", line.last.aux_loss},
              {"z_loss", line.last.z_loss}};
    Json layers = Json::array();
    for (int64_t l = 0; l < line.layers; ++l) {
        const LayerLoad load = layer_load(w.expert_counts().data() + l * line.experts, line.experts);
        Json layer{
            {"max_over_mean", load.max_over_mean}, {"entropy", load.entropy}, {"dropped", load.dropped}};
        if (!line.last.layer_aux_loss.empty()) {
            layer["router_loss"] = line.last.layer_aux_loss[static_cast<size_t>(l)];
        }
        layers.push_back(std::move(layer));
    }
    json["expert_load"] = std::move(layers);
    for (const TensorStatistics& t : line.last.low_precision) {
        Json& row = json["fp8_stats"][t.name];
        row = {{"amax", t.amax}, {"underflow", t.underflow}, {"saturation", t.saturation}};
        if (t.scale > 0) row["scale"] = t.scale;
    }
    return json.dump();
}

std::string validation_json(const ValidationReport& report) {
    // What is not finite becomes null: the perplexity of a loss of 710 is not.
    Json json{{"step", report.step},
              {"val_loss", report.loss},
              {"val_perplexity", std::exp(report.loss)},
              {"val_labels", report.labels},
              {"final", report.final}};
    if (report.order1 > 0) {
        json["count_model_order1"] = report.order1;
        json["count_model_order3"] = report.order3;
    }
    return json.dump();
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t keep_through)
    : path_(path), file_(nullptr, &std::fclose) {
    write_file(path, kept_lines(path, keep_through));
    file_.reset(std::fopen(path.c_str(), "a"));
    if (!file_) throw Error(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
}

void MetricsFile::append(const std::string& object) {
    const bool written =
        std::fputs((object + "\n").c_str(), file_.get()) >= 0 && std::fflush(file_.get()) == 0;
    if (!written) throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

}  // namespace moebius::train
