// Forward: a piece is a tile of queries under some heads of one kv head. It walks over tiles of keys with the
// online softmax (Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022): maximum and sum so far in
// lanes, the output rescaled when the maximum grows.
#include "moebius/ops/attention/cpu.h"

#include <cmath>

#include "moebius/ops/attention/cpu_tiles.h"

namespace moebius::ops::cpu {

std::vector<Sequence> sequences_of(const AttentionShape& shape, int64_t tokens) {
    std::vector<Sequence> sequences;
    const int32_t* cu_seqlens = shape.cu_seqlens.as<int32_t>();
    const int64_t count = shape.cu_seqlens.size(0) - 1;
    MOEBIUS_CHECK(cu_seqlens[0] == 0, "cu_seqlens starts with ", cu_seqlens[0]);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = cu_seqlens[i], length = int64_t{cu_seqlens[i + 1]} - begin;
        MOEBIUS_CHECK(length >= 0 && length <= shape.max_seqlen && begin + length <= tokens, "sequence ", i,
                      " is [", begin, ", ", begin + length, "), max_seqlen ", shape.max_seqlen, ", tokens ",
                      tokens);
        if (length > 0) sequences.push_back({begin, length});
    }
    return sequences;
}

namespace {

constexpr int64_t kFewPieces = 64;  // below, heads of a group are pieces of their own

// Exponentials of a tile's scores in place, zeros where a query doesn't see a key, and the statistics of each
// query brought up to date. `rescale`: what the sums so far were multiplied by.
struct SoftmaxBody {
    template <Isa>
    MOEBIUS_INLINE static void run(Band band, Range queries, Range keys, float* scores, float* maximum,
                                   float* sum, float* rescale) {
        for (int64_t lanes = 0; lanes < queries.size(); lanes += kLanes) {
            const int64_t query = queries.begin + lanes;
            float* column = scores + lanes - keys.begin * kQueries;
            const F16 before = load(maximum + lanes);
            F16 high = before;
            const Range any = each_key(
                band, {query, query + kLanes}, keys,
                [&](int64_t key) __attribute__((always_inline)) {
                    const F16 score = load(column + key * kQueries);
                    const F16 seen = visible(query, key, band.window) ? score : broadcast(kLowest);
                    high = seen > high ? seen : high;
                },
                [&](int64_t key) __attribute__((always_inline)) {
                    const F16 score = load(column + key * kQueries);
                    high = score > high ? score : high;
                });
            const F16 factor = exp_below_one(before - high);
            F16 total = load(sum + lanes) * factor;
            each_key(
                band, {query, query + kLanes}, keys,
                [&](int64_t key) __attribute__((always_inline)) {
                    const F16 p = exp_below_one(load(column + key * kQueries) - high);
                    const F16 seen = visible(query, key, band.window) ? p : F16{};
                    store(column + key * kQueries, seen);
                    total += seen;
                },
                [&](int64_t key) __attribute__((always_inline)) {
                    const F16 p = exp_below_one(load(column + key * kQueries) - high);
                    store(column + key * kQueries, p);
                    total += p;
                });
            for (int64_t key = keys.begin; key < any.begin; ++key) store(column + key * kQueries, F16{});
            for (int64_t key = std::max(any.end, keys.begin); key < keys.end; ++key)
                store(column + key * kQueries, F16{});
            store(maximum + lanes, high);
            store(sum + lanes, total);
            store(rescale + lanes, factor);
        }
    }
};

struct RescaleBody {
    template <Isa>
    MOEBIUS_INLINE static void run(float* out, int64_t width, int64_t count, const float* rescale) {
        for (int64_t row = 0; row < count; ++row) {
            if (rescale[row] == 1.0f) continue;
            for (int64_t j = 0; j < width; j += kLanes)
                store(out + row * width + j, load(out + row * width + j) * rescale[row]);
        }
    }
};

// Sizes and buffers of one call.
class Forward {
  public:
    Forward(const AttentionArgs& args, Isa isa)
        : args_(args),
          isa_(isa),
          head_dim_(args.q.size(2)),
          width_(round_up(head_dim_, kStrip)),
          columns_(round_up(head_dim_, tile_columns(isa))),
          group_(args.q.size(1) / args.k.size(1)),
          heads_(group_) {}

    void run(const Exec& exec);

  private:
    // One thread's. The last four hold one part a head of the piece.
    struct Buffers {
        float* keys;           // fp32 rows of a tile's keys, row_stride() apart
        float* values;         // its values, right operand
        float* scores;         // (keys, kQueries)
        float* left;           // the scores transposed, left operand
        float* rescale;        // (kQueries)
        float* packed;         // scaled queries, right operand
        float* out;            // (kQueries, width): Σ of values so far
        float *maximum, *sum;  // (kQueries)
    };
    Buffers carve(Carver& carver) const;
    int64_t row_stride() const { return good_row_stride(head_dim_); }
    int64_t packed_floats() const { return packed_right_floats(isa_, head_dim_, kQueries); }

    template <class T>
    void piece(const Sequence& sequence, Range queries, int64_t first_head, const Buffers& b) const;
    template <class T>
    void begin_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                    const Buffers& b) const;
    void add_keys(Band band, Range queries, Range keys, int64_t part, const Buffers& b) const;
    template <class T>
    void end_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                  const Buffers& b) const;

    const AttentionArgs& args_;
    Isa isa_;
    int64_t head_dim_;
    int64_t width_;    // stride of output rows in scratch
    int64_t columns_;  // head_dim in whole register tiles
    int64_t group_;    // query heads of a kv head
    int64_t heads_;    // of them in a piece, which share its packed keys and values
};

Forward::Buffers Forward::carve(Carver& carver) const {
    const int64_t tile = keys_of_tile(isa_);
    Buffers b;
    b.keys = carver.take(tile * row_stride());
    b.values = carver.take(packed_right_floats(isa_, tile, columns_));
    b.scores = carver.take(tile * kQueries);
    b.left = carver.take(packed_left_floats(isa_, true, kQueries, tile));
    b.rescale = carver.take(kQueries);
    b.packed = carver.take(heads_ * packed_floats());
    b.out = carver.take(heads_ * kQueries * width_);
    b.maximum = carver.take(heads_ * kQueries);
    b.sum = carver.take(heads_ * kQueries);
    return b;
}

template <class T>
void Forward::begin_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                         const Buffers& b) const {
    // The rows pass through the output's buffer, which is not needed yet.
    float* rows = b.out + part * kQueries * width_;
    const T* q = head_at<T>(args_.q, sequence.begin + queries.begin, head);
    with_isa<LoadRowsBody>(isa_, q, args_.q.stride[0], rows, width_, queries.size(), kQueries, head_dim_,
                           args_.shape.scale);
    pack_right(isa_, true, head_dim_, kQueries, rows, width_, b.packed + part * packed_floats());
    std::fill_n(rows, kQueries * width_, 0.0f);
    std::fill_n(b.maximum + part * kQueries, kQueries, kLowest);
    std::fill_n(b.sum + part * kQueries, kQueries, 0.0f);
}

void Forward::add_keys(Band band, Range queries, Range keys, int64_t part, const Buffers& b) const {
    float* out = b.out + part * kQueries * width_;
    const int64_t columns = tile_columns(isa_);
    const Right packed{b.packed + part * packed_floats(), head_dim_ * columns};
    const Right values{b.values, keys.size() * columns};
    tile_scores(isa_, band, queries, keys, {b.keys, row_stride()}, packed, head_dim_, b.scores);
    with_isa<SoftmaxBody>(isa_, band, queries, keys, b.scores, b.maximum + part * kQueries,
                          b.sum + part * kQueries, b.rescale);
    with_isa<RescaleBody>(isa_, out, width_, queries.size(), static_cast<const float*>(b.rescale));
    add_transposed(isa_, band, queries, keys, b.scores, b.left, values, columns_, {out, width_});
}

template <class T>
void Forward::end_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                       const Buffers& b) const {
    const float* maximum = b.maximum + part * kQueries;
    const float* sum = b.sum + part * kQueries;
    const int64_t first = sequence.begin + queries.begin;
    for (int64_t i = 0; i < queries.size(); ++i) b.rescale[i] = 1.0f / sum[i];
    with_isa<StoreRowsBody>(isa_, static_cast<const float*>(b.out + part * kQueries * width_), width_,
                            head_at<T>(args_.out, first, head), args_.out.stride[0], queries.size(),
                            head_dim_, static_cast<const float*>(b.rescale), int64_t{1});
    float* lse = args_.lse.as<float>() + head * args_.lse.stride[0] + first;
    for (int64_t i = 0; i < queries.size(); ++i) lse[i] = maximum[i] + std::log(sum[i]);
}

template <class T>
void Forward::piece(const Sequence& sequence, Range queries, int64_t first_head, const Buffers& b) const {
    const int64_t kv_head = first_head / group_;
    const Band band = band_of(args_.shape, sequence.length);
    for (int64_t part = 0; part < heads_; ++part)
        begin_head<T>(sequence, queries, first_head + part, part, b);
    const Range all = band.keys_of(queries);
    const int64_t tile = keys_of_tile(isa_);
    for (int64_t first = all.begin; first < all.end; first += tile) {
        const Range keys{first, std::min(first + tile, all.end)};
        const T* k = head_at<T>(args_.k, sequence.begin + first, kv_head);
        const T* v = head_at<T>(args_.v, sequence.begin + first, kv_head);
        with_isa<LoadRowsBody>(isa_, k, args_.k.stride[0], b.keys, row_stride(), keys.size(), keys.size(),
                               head_dim_, 1.0f);
        pack_right(isa_, false, keys.size(), head_dim_, v, args_.v.stride[0], b.values);
        for (int64_t part = 0; part < heads_; ++part) add_keys(band, queries, keys, part, b);
    }
    for (int64_t part = 0; part < heads_; ++part) end_head<T>(sequence, queries, first_head + part, part, b);
}

void Forward::run(const Exec& exec) {
    const std::vector<Sequence> sequences = sequences_of(args_.shape, args_.q.size(0));
    // Pieces before each sequence's, for one head.
    std::vector<int64_t> before(1, 0);
    for (const Sequence& s : sequences) before.push_back(before.back() + ceil_div(s.length, kQueries));
    if (before.back() * args_.k.size(1) < kFewPieces) heads_ = 1;
    const int64_t splits = args_.q.size(1) / heads_;

    Carver count(nullptr);
    carve(count);
    const int64_t floats = count.used();
    const Scratch scratch("attention tiles",
                          static_cast<size_t>(exec.threads->size() * floats) * sizeof(float), exec);
    with_float_type(args_.q.dtype, [&](auto type) {
        exec.parallel(before.back() * splits, [&](int64_t index, int thread) {
            const int64_t at = index / splits;
            const auto found = std::upper_bound(before.begin(), before.end(), at) - before.begin() - 1;
            const Sequence& sequence = sequences[static_cast<size_t>(found)];
            // The last queries see the most keys: they go first.
            const int64_t tile = before[static_cast<size_t>(found) + 1] - 1 - at;
            const Range queries{tile * kQueries, std::min((tile + 1) * kQueries, sequence.length)};
            Carver carver(scratch.as<float>() + thread * floats);
            piece<decltype(type)>(sequence, queries, index % splits * heads_, carve(carver));
        });
    });
}

}  // namespace

void attention(const AttentionArgs& args, const Exec& exec) {
    Forward(args, exec.device->isa()).run(exec);
}

}  // namespace moebius::ops::cpu
