#include "moebius/ops/attention/cudnn.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/ops/attention/cudnn_functions.h"
#include "moebius/ops/attention/cudnn_layout.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cudnn {
namespace {

namespace graph = cudnn_frontend::graph;
using cudnn_frontend::DataType_t;
using TensorPtr = std::shared_ptr<graph::Tensor_attributes>;

// Names of a graph's tensors. Those of the first group are over tokens; a tensor's offsets are kOffsets
// further on.
enum Id : int64_t { kQ, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv, kLengths, kKvLengths, kOffsets = 100 };
static_assert(kDv + 1 == PackedLayout::kMostTensors);

// How one tensor over tokens lies: elements between tokens and between heads.
struct Rows {
    int64_t heads = 0, token_stride = 0, head_stride = 0;
    auto operator<=>(const Rows&) const = default;
};

// All that a graph depends on. A backward graph's rows are those of one piece.
struct GraphKey {
    bool backward = false, ordered = true;
    int64_t sequences = 0, length = 0, head_dim = 0, window = 0;
    float scale = 0;
    std::array<Rows, PackedLayout::kMostTensors> rows{};
    auto operator<=>(const GraphKey&) const = default;
};

struct Plan {
    std::string error;
    std::shared_ptr<graph::Graph> graph;
    size_t workspace = 0;
};

Rows rows_of(const View& view, int64_t heads) {
    return {heads, view.stride[0], view.stride[1]};
}
Rows dense_rows(int64_t heads, int64_t head_dim) {
    return {heads, heads * head_dim, head_dim};
}

// Tensors of a graph that is being built.
class Builder {
  public:
    Builder(const GraphKey& key, int cc) : key_(key), graph_(std::make_shared<graph::Graph>()) {
        graph_->set_io_data_type(DataType_t::BFLOAT16)
            .set_intermediate_data_type(DataType_t::FLOAT)
            .set_compute_data_type(DataType_t::FLOAT)
            .set_sm_version(cc);  // before the first operation, which copies it
    }

    // Names every tensor and builds the operations; what the frontend says against it comes out as its error.
    std::shared_ptr<graph::Graph> build() {
        const TensorPtr q = input(kQ), k = input(kK), v = input(kV);
        const TensorPtr lengths = lengths_of(kLengths), kv_lengths = lengths_of(kKvLengths);
        if (key_.backward) {
            // No bound on the tokens of all sequences: with one, the library takes dk to lie as k does.
            auto options = graph::SDPA_backward_attributes()
                               .set_name("attention_backward")
                               .set_deterministic_algorithm(key_.ordered);
            mask(options, lengths, kv_lengths);
            auto [dq, dk, dv] =
                graph_->sdpa_backward(q, k, v, input(kOut), input(kDout), input(kStats), options);
            output(kDq, dq);
            output(kDk, dk);
            output(kDv, dv);
        } else {
            auto options = graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
            mask(options, lengths, kv_lengths);
            auto [out, stats] = graph_->sdpa(q, k, v, options);
            output(kOut, out);
            output(kStats, stats);
        }
        return graph_;
    }

  private:
    template <class Options>
    void mask(Options& options, const TensorPtr& lengths, const TensorPtr& kv_lengths) const {
        options.set_attn_scale(key_.scale)
            .set_padding_mask(true)
            .set_seq_len_q(lengths)
            .set_seq_len_kv(kv_lengths)
            .set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
        // Its left bound b sees keys j > i − b, as our window does. One as long as a sequence hides nothing.
        if (key_.window > 0 && key_.window < key_.length)
            options.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    }

    TensorPtr integers(int64_t id, int64_t count, DataType_t type) const {
        return graph_->tensor(graph::Tensor_attributes()
                                  .set_uid(id)
                                  .set_name("integers" + std::to_string(id))
                                  .set_dim({count, 1, 1, 1})
                                  .set_stride({1, 1, 1, 1})
                                  .set_data_type(type));
    }
    TensorPtr lengths_of(int64_t id) const { return integers(id, key_.sequences, DataType_t::INT32); }

    // (sequences, heads, length, width) with the strides of (tokens, heads, width): a sequence begins where
    // its offset says, so the stride over sequences means nothing.
    void place(graph::Tensor_attributes& tensor, Id id) const {
        const Rows& rows = key_.rows[id];
        const bool stats = id == kStats;
        tensor.set_uid(id)
            .set_name("tensor" + std::to_string(id))
            .set_dim({key_.sequences, rows.heads, key_.length, stats ? 1 : key_.head_dim})
            .set_stride({key_.length * rows.token_stride, rows.head_stride, rows.token_stride, 1})
            .set_data_type(stats ? DataType_t::FLOAT : DataType_t::BFLOAT16)
            .set_ragged_offset(integers(kOffsets + id, key_.sequences + 1, DataType_t::INT64));
    }
    TensorPtr input(Id id) const {
        graph::Tensor_attributes tensor;
        place(tensor, id);
        return graph_->tensor(tensor);
    }
    void output(Id id, const TensorPtr& tensor) const {
        place(*tensor, id);
        tensor->set_output(true);
    }

    const GraphKey& key_;
    std::shared_ptr<graph::Graph> graph_;
};

// The library's handle and the graphs built so far: one a shape, for the device's life.
class Library {
  public:
    Library() : error_(library_error()) {
        if (!error_.empty()) return;
        const cudnnStatus_t status = cudnnCreate(&handle_);
        if (status != CUDNN_STATUS_SUCCESS)
            error_ = fmt::format("cannot start cuDNN: {}", cudnnGetErrorString(status));
    }
    ~Library() {
        plans_.clear();
        if (handle_ != nullptr) cudnnDestroy(handle_);
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    const std::string& error() const { return error_; }

    const Plan& plan(const GraphKey& key, int cc) {
        const auto found = plans_.find(key);
        if (found != plans_.end()) return found->second;
        Plan& plan = plans_[key];
        plan.error = error_;
        if (plan.error.empty()) make(key, cc, plan);
        return plan;
    }

    void run(const Plan& plan, std::unordered_map<int64_t, void*>& tensors, const Exec& exec) const {
        const Scratch workspace("attention.workspace", plan.workspace, exec);
        const cudnnStatus_t status = cudnnSetStream(handle_, cuda_stream(exec));
        if (status != CUDNN_STATUS_SUCCESS) throw DeviceError(cudnnGetErrorString(status));
        auto result = plan.graph->execute(handle_, tensors, workspace.as<void>());
        if (result.is_bad()) throw DeviceError("attention: cuDNN: " + result.get_message());
    }

  private:
    // Stops at the first error: what follows one is undefined in the frontend.
    void make(const GraphKey& key, int cc, Plan& plan) const {
        try {
            plan.graph = Builder(key, cc).build();
            auto result = plan.graph->validate();
            if (result.is_good()) result = plan.graph->build_operation_graph(handle_);
            // The library's own order of preference, a rule of its version and the shape; nothing is timed.
            if (result.is_good())
                result = plan.graph->create_execution_plans({cudnn_frontend::HeurMode_t::A});
            if (result.is_good()) result = plan.graph->check_support();
            if (result.is_good())
                result = plan.graph->build_plans(cudnn_frontend::BuildPlanPolicy_t::HEURISTICS_CHOICE);
            int64_t bytes = 0;
            if (result.is_good()) result = plan.graph->get_workspace_size(bytes);
            if (result.is_bad()) plan.error = refusal(result.get_message());
            plan.workspace = static_cast<size_t>(bytes);
        } catch (const std::exception& error) {
            plan.error = refusal(error.what());
        }
        if (!plan.error.empty()) plan.graph.reset();
    }

    static std::string refusal(std::string text) {
        std::replace(text.begin(), text.end(), '\n', ' ');
        return fmt::format("cuDNN {} has no plan: {}", cudnnGetVersion(), text);
    }

    std::string error_;
    cudnnHandle_t handle_ = nullptr;
    std::map<GraphKey, Plan> plans_;
};

AttentionSizes sizes_of(const AttentionShape& shape, const View& q, const View& k) {
    return {shape.cu_seqlens.size(0) - 1, shape.max_seqlen, q.size(1), k.size(1)};
}

bool nothing_to_do(const AttentionShape& shape, const View& q) {
    return q.size(0) == 0 || shape.cu_seqlens.size(0) <= 1 || shape.max_seqlen == 0;
}

int64_t whole_steps(int64_t length) {
    return (length + kLengthStep - 1) / kLengthStep * kLengthStep;
}

GraphKey common_key(const AttentionShape& shape, const View& q, const Pieces& pieces) {
    return {.sequences = pieces.sequences,
            .length = whole_steps(shape.max_seqlen),
            .head_dim = q.size(2),
            .window = shape.window,
            .scale = shape.scale};
}

GraphKey key_of(const AttentionArgs& a) {
    GraphKey key = common_key(a.shape, a.q, forward_pieces(sizes_of(a.shape, a.q, a.k)));
    const int64_t heads = a.q.size(1), kv_heads = a.k.size(1);
    key.rows[kQ] = rows_of(a.q, heads);
    key.rows[kK] = rows_of(a.k, kv_heads);
    key.rows[kV] = rows_of(a.v, kv_heads);
    key.rows[kOut] = rows_of(a.out, heads);
    key.rows[kStats] = dense_rows(heads, 1);
    return key;
}

// Gradients of keys and values go to dense memory first where several query heads share them. (Where they
// don't, the library takes them to lie as keys and values do.)
bool dense_gradients(const AttentionBackwardArgs& a) {
    return a.q.size(1) != a.k.size(1);
}

GraphKey key_of(const AttentionBackwardArgs& a, const Pieces& pieces, bool ordered) {
    GraphKey key = common_key(a.shape, a.q, pieces);
    const int64_t kv_heads = pieces.kv_heads, heads = a.q.size(1) / a.k.size(1) * kv_heads, d = a.q.size(2);
    key.backward = true;
    key.ordered = ordered;
    key.rows[kQ] = rows_of(a.q, heads);
    key.rows[kK] = rows_of(a.k, kv_heads);
    key.rows[kV] = rows_of(a.v, kv_heads);
    key.rows[kOut] = rows_of(a.out, heads);
    key.rows[kStats] = dense_rows(heads, 1);
    key.rows[kDout] = rows_of(a.dout, heads);
    key.rows[kDq] = rows_of(a.dq, heads);
    key.rows[kDk] = dense_gradients(a) ? dense_rows(kv_heads, d) : rows_of(a.dk, kv_heads);
    key.rows[kDv] = dense_gradients(a) ? dense_rows(kv_heads, d) : rows_of(a.dv, kv_heads);
    return key;
}

PackedLayout layout_of(const GraphKey& key, const Pieces& pieces) {
    PackedLayout layout;
    layout.pieces = pieces.sequence_pieces;
    layout.sequences = pieces.sequences;
    layout.tensors = PackedLayout::kMostTensors;
    for (int64_t i = 0; i < layout.tensors; ++i)
        layout.token_stride[i] = key.rows[static_cast<size_t>(i)].token_stride;
    return layout;
}

// Address of head `head` of token 0.
void* head_of(const View& view, int64_t head) {
    return static_cast<char*>(view.data) + bytes_of(view.dtype, head * view.stride[1]);
}

void point_to_piece(std::unordered_map<int64_t, void*>& tensors, const PackedLayout& layout, int64_t piece) {
    tensors[kLengths] = tensors[kKvLengths] = layout.piece_lengths(piece);
    for (int64_t i = 0; i < layout.tensors; ++i) tensors[kOffsets + i] = layout.piece_offsets(i, piece);
}

const Plan& plan_or_throw(Library& library, const GraphKey& key, const Exec& exec) {
    const Plan& plan = library.plan(key, exec.device->cc());
    if (!plan.error.empty()) throw DeviceError("attention: " + plan.error);
    return plan;
}

}  // namespace

std::string unavailable(const AttentionArgs& a, const Exec& exec) {
    Library& library = exec.device->slot<Library>();
    if (!library.error().empty() || nothing_to_do(a.shape, a.q)) return library.error();
    return library.plan(key_of(a), exec.device->cc()).error;
}

std::string unavailable(const AttentionBackwardArgs& a, bool ordered, const Exec& exec) {
    Library& library = exec.device->slot<Library>();
    if (!library.error().empty() || nothing_to_do(a.shape, a.q)) return library.error();
    const std::string reason = refused_by_version(a.shape, cudnnGetVersion());
    if (!reason.empty()) return reason;
    const Pieces pieces = backward_pieces(sizes_of(a.shape, a.q, a.k), ordered);
    return library.plan(key_of(a, pieces, ordered), exec.device->cc()).error;
}

void attention(const AttentionArgs& a, const Exec& exec) {
    if (nothing_to_do(a.shape, a.q)) return;
    Library& library = exec.device->slot<Library>();
    const Pieces pieces = forward_pieces(sizes_of(a.shape, a.q, a.k));
    const GraphKey key = key_of(a);
    const Plan& plan = plan_or_throw(library, key, exec);
    const int64_t tokens = a.q.size(0), heads = a.q.size(1);

    PackedLayout layout = layout_of(key, pieces);
    const Scratch offsets("attention.offsets", static_cast<size_t>(layout.offset_count()) * sizeof(int64_t),
                          exec);
    const Scratch lengths("attention.lengths", static_cast<size_t>(layout.length_count()) * sizeof(int32_t),
                          exec);
    layout.offsets = offsets.as<int64_t>();
    layout.lengths = lengths.as<int32_t>();
    write_layout(a.shape, tokens, layout, exec);

    const int64_t rows = tokens + kSpareRows, pitch = stats_pitch(rows, heads);
    const Scratch packed("attention.stats", static_cast<size_t>(pitch) * sizeof(float), exec);
    const PackedStats stats{packed.as<float>(), heads, rows, pitch};
    std::unordered_map<int64_t, void*> tensors{
        {kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kOut, a.out.data}, {kStats, stats.data}};
    point_to_piece(tensors, layout, 0);
    library.run(plan, tensors, exec);
    unpack_stats(stats, a.lse, a.shape, exec);
}

namespace {

void backward(const AttentionBackwardArgs& a, bool ordered, const Exec& exec) {
    if (nothing_to_do(a.shape, a.q)) return;
    Library& library = exec.device->slot<Library>();
    const Pieces pieces = backward_pieces(sizes_of(a.shape, a.q, a.k), ordered);
    const GraphKey key = key_of(a, pieces, ordered);
    const Plan& plan = plan_or_throw(library, key, exec);
    const int64_t tokens = a.q.size(0), heads = key.rows[kQ].heads;

    PackedLayout layout = layout_of(key, pieces);
    const Scratch offsets("attention.offsets", static_cast<size_t>(layout.offset_count()) * sizeof(int64_t),
                          exec);
    const Scratch lengths("attention.lengths", static_cast<size_t>(layout.length_count()) * sizeof(int32_t),
                          exec);
    layout.offsets = offsets.as<int64_t>();
    layout.lengths = lengths.as<int32_t>();
    write_layout(a.shape, tokens, layout, exec);

    const int64_t rows = tokens + kSpareRows, pitch = stats_pitch(rows, heads);
    const Scratch packed("attention.stats", static_cast<size_t>(pieces.head_pieces * pitch) * sizeof(float),
                         exec);
    const PackedStats stats{packed.as<float>(), heads, rows, pitch};
    pack_stats(a.lse, stats, a.shape, exec);

    const bool dense = dense_gradients(a);
    const auto gradient_bytes =
        static_cast<size_t>(bytes_of(a.dk.dtype, dense ? tokens * pieces.kv_heads * a.k.size(2) : 0));
    const Scratch dk("attention.dk", gradient_bytes, exec), dv("attention.dv", gradient_bytes, exec);
    for (int64_t part = 0; part < pieces.head_pieces; ++part) {
        const int64_t head = part * heads, kv_head = part * pieces.kv_heads;
        std::unordered_map<int64_t, void*> tensors{
            {kQ, head_of(a.q, head)},
            {kK, head_of(a.k, kv_head)},
            {kV, head_of(a.v, kv_head)},
            {kOut, head_of(a.out, head)},
            {kDout, head_of(a.dout, head)},
            {kStats, stats.data + part * pitch},
            {kDq, head_of(a.dq, head)},
            {kDk, dense ? dk.as<void>() : head_of(a.dk, kv_head)},
            {kDv, dense ? dv.as<void>() : head_of(a.dv, kv_head)},
        };
        for (int64_t piece = 0; piece < pieces.sequence_pieces; ++piece) {
            point_to_piece(tensors, layout, piece);
            library.run(plan, tensors, exec);
        }
        if (!dense) continue;
        for (const auto& [from, gradient] : {std::pair(&dk, &a.dk), std::pair(&dv, &a.dv)}) {
            View to = *gradient;
            to.data = head_of(to, kv_head);
            to.shape = {tokens, pieces.kv_heads, a.k.size(2)};
            copy_heads(from->as<void>(), to, a.shape, exec);
        }
    }
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& a, const Exec& exec) {
    backward(a, true, exec);
}

void attention_backward_unordered(const AttentionBackwardArgs& a, const Exec& exec) {
    backward(a, false, exec);
}

}  // namespace moebius::ops::cudnn
