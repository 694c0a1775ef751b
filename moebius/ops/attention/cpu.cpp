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

// Exponentials of a tile's scores times `scale` in place (panels of `rows` keys), zeros where a query doesn't
// see a key, and the statistics of each query brought up to date. `rescale`: what the sums so far were
// multiplied by. A score that isn't finite makes its query's sum NaN.
struct SoftmaxBody {
    template <Isa isa>
    MOEBIUS_INLINE static void run(Band band, Range queries, Range keys, float* scores, int64_t rows,
                                   float scale, float* highest, float* sums, float* rescale) {
        for (int64_t lanes = 0; lanes < queries.size(); lanes += kLanes) {
            const int64_t query = queries.begin + lanes;
            float* column = scores + panel_offset<isa>(lanes, rows) - keys.begin * kPanel<isa>;
            const auto score = [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA {
                return load_panel<isa>(column + key * kPanel<isa>, rows) * scale;
            };
            const F16 before = load(highest + lanes);
            F16 high = before, nothing{};
            const auto see = [&](F16 seen) MOEBIUS_ATTENTION_LAMBDA {
                high = maximum(high, seen);
                nothing += 0.0f * seen;
            };
            const Range any = each_key(
                band, {query, query + kLanes}, keys,
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA {
                    see(select(visible(query, key, band.window), score(key), broadcast(kLowest)));
                },
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA { see(score(key)); });
            const F16 factor = exp_below_one(before - high);
            F16 sum = load(sums + lanes) * factor + nothing;
            const auto keep = [&](int64_t key, F16 p) MOEBIUS_ATTENTION_LAMBDA {
                store_panel<isa>(column + key * kPanel<isa>, rows, p);
                sum += p;
            };
            each_key(
                band, {query, query + kLanes}, keys,
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA {
                    keep(key,
                         select(visible(query, key, band.window), exp_below_one(score(key) - high), F16{}));
                },
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA { keep(key, exp_below_one(score(key) - high)); });
            for (int64_t key = keys.begin; key < std::min(any.begin, keys.end); ++key) keep(key, F16{});
            for (int64_t key = std::max(any.end, keys.begin); key < keys.end; ++key) keep(key, F16{});
            store(highest + lanes, high);
            store(sums + lanes, sum);
            store(rescale + lanes, factor);
        }
    }
};

// out (width, kQueries) times each query's factor, where it is not 1.
struct RescaleBody {
    template <Isa>
    MOEBIUS_INLINE static void run(float* out, int64_t width, int64_t count, const float* rescale) {
        for (int64_t lanes = 0; lanes < count; lanes += kLanes) {
            bool any = false;
            for (int64_t i = 0; i < kLanes; ++i) any |= rescale[lanes + i] != 1.0f;
            if (!any) continue;
            const F16 factor = load(rescale + lanes);
            for (int64_t row = 0; row < width; ++row)
                store(out + row * kQueries + lanes, load(out + row * kQueries + lanes) * factor);
        }
    }
};

// What rounding took from rows of `out`, which are `from` times the row's factor.
struct StoreRestBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const float* from, int64_t from_stride, const T* out, int64_t out_stride,
                                   T* rest, int64_t rest_stride, int64_t count, int64_t width,
                                   const float* factors) {
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t j = 0; j < width; j += kLanes) {
                const int64_t some = std::min(kLanes, width - j);
                const F16 rounded = load_some(out + row * out_stride + j, some);
                store_some(rest + row * rest_stride + j,
                           load(from + row * from_stride + j) * factors[row] - rounded, some);
            }
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
          width_(round_up(head_dim_, kLanes)),
          tile_(keys_of_tile(isa)),
          group_(args.q.size(1) / args.k.size(1)),
          heads_(group_),
          scale_(args.shape.scale) {}

    void run(const Exec& exec);

  private:
    // One thread's. The last four hold one part a head of the piece.
    struct Buffers {
        float* keys;           // fp32 rows of a tile's keys, row_stride() apart
        float* values;         // its values transposed, left operand
        float* scores;         // its scores, right operand
        float* rows;           // (kQueries, width), to turn queries and the output
        float* rescale;        // (kQueries)
        float* packed;         // scaled queries, right operand
        float* out;            // (head_dim, kQueries): Σ of values so far
        float *maximum, *sum;  // (kQueries)
    };
    Buffers carve(Carver& carver) const;
    int64_t row_stride() const { return good_row_stride(head_dim_); }
    int64_t packed_floats() const { return packed_right_floats(isa_, head_dim_, kQueries); }
    int64_t out_floats() const { return head_dim_ * kQueries; }

    template <class T>
    void piece(const Sequence& sequence, Range queries, int64_t first_head, const Buffers& b) const;
    template <class T>
    void begin_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                    const Buffers& b) const;
    void add_keys(Band band, Range queries, Range keys, Left values, int64_t part, const Buffers& b) const;
    template <class T>
    void end_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                  const Buffers& b) const;
    template <class T>
    void store_rest(int64_t first, int64_t count, int64_t head, const float* out, const Buffers& b) const;

    const AttentionArgs& args_;
    Isa isa_;
    int64_t head_dim_;
    int64_t width_;  // head_dim in whole vectors
    int64_t tile_;   // keys of a tile
    int64_t group_;  // query heads of a kv head
    int64_t heads_;  // of them in a piece, which share its packed keys and values
    SplitScale scale_;
};

Forward::Buffers Forward::carve(Carver& carver) const {
    Buffers b;
    b.keys = carver.take(tile_ * row_stride());
    b.values = carver.take(packed_left_floats(isa_, true, head_dim_, tile_));
    b.scores = carver.take(tile_ * kQueries);
    b.rows = carver.take(std::max(kQueries * width_, transposed_floats(isa_, head_dim_)));
    b.rescale = carver.take(kQueries);
    b.packed = carver.take(heads_ * packed_floats());
    b.out = carver.take(heads_ * out_floats());
    b.maximum = carver.take(heads_ * kQueries);
    b.sum = carver.take(heads_ * kQueries);
    return b;
}

template <class T>
void Forward::begin_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                         const Buffers& b) const {
    const T* q = head_at<T>(args_.q, sequence.begin + queries.begin, head);
    with_isa<LoadRowsBody>(isa_, q, args_.q.stride[0], b.rows, width_, queries.size(), kQueries, head_dim_,
                           scale_.power);
    pack_right(isa_, true, head_dim_, kQueries, b.rows, width_, b.packed + part * packed_floats());
    std::fill_n(b.out + part * out_floats(), out_floats(), 0.0f);
    std::fill_n(b.maximum + part * kQueries, kQueries, kLowest);
    std::fill_n(b.sum + part * kQueries, kQueries, 0.0f);
}

void Forward::add_keys(Band band, Range queries, Range keys, Left values, int64_t part,
                       const Buffers& b) const {
    float* out = b.out + part * out_floats();
    const int64_t columns = tile_columns(isa_), strip_stride = tile_ * columns;
    const Right packed{b.packed + part * packed_floats(), head_dim_ * columns};
    tile_scores(isa_, band, queries, keys, {b.keys, row_stride()}, packed, head_dim_, {b.scores, columns},
                strip_stride);
    with_isa<SoftmaxBody>(isa_, band, queries, keys, b.scores, tile_, scale_.rest,
                          b.maximum + part * kQueries, b.sum + part * kQueries, b.rescale);
    with_isa<RescaleBody>(isa_, out, head_dim_, queries.size(), static_cast<const float*>(b.rescale));
    add_transposed(isa_, band, queries, keys, values, {b.scores, strip_stride}, head_dim_, out);
}

template <class T>
void Forward::end_head(const Sequence& sequence, Range queries, int64_t head, int64_t part,
                       const Buffers& b) const {
    const float* maximum = b.maximum + part * kQueries;
    const float* sum = b.sum + part * kQueries;
    const int64_t first = sequence.begin + queries.begin;
    for (int64_t i = 0; i < queries.size(); ++i) b.rescale[i] = 1.0f / sum[i];
    store_transposed(isa_, b.out + part * out_floats(), b.rows, queries.size(), head_dim_,
                     head_at<T>(args_.out, first, head), args_.out.stride[0], b.rescale, 1);
    if (args_.out_rest.data) store_rest<T>(first, queries.size(), head, b.out + part * out_floats(), b);
    float* lse = args_.lse.as<float>() + head * args_.lse.stride[0] + first;
    for (int64_t i = 0; i < queries.size(); ++i) lse[i] = maximum[i] + std::log(sum[i]);
}

template <class T>
void Forward::store_rest(int64_t first, int64_t count, int64_t head, const float* out,
                         const Buffers& b) const {
    const int64_t columns = tile_columns(isa_);
    const T* stored = head_at<T>(args_.out, first, head);
    T* rest = head_at<T>(args_.out_rest, first, head);
    const Right panels = pack_right(isa_, true, count, head_dim_, out, kQueries, b.rows);
    for (int64_t column = 0; column < head_dim_; column += columns) {
        with_isa<StoreRestBody>(isa_, static_cast<const float*>(right_at(isa_, panels, 0, column).data),
                                columns, stored + column, args_.out.stride[0], rest + column,
                                args_.out_rest.stride[0], count, std::min(columns, head_dim_ - column),
                                static_cast<const float*>(b.rescale));
    }
}

template <class T>
void Forward::piece(const Sequence& sequence, Range queries, int64_t first_head, const Buffers& b) const {
    const int64_t kv_head = first_head / group_;
    const Band band = band_of(args_.shape, sequence.length);
    for (int64_t part = 0; part < heads_; ++part)
        begin_head<T>(sequence, queries, first_head + part, part, b);
    const Range all = band.keys_of(queries);
    for (int64_t first = all.begin; first < all.end; first += tile_) {
        const Range keys{first, std::min(first + tile_, all.end)};
        const T* k = head_at<T>(args_.k, sequence.begin + first, kv_head);
        const T* v = head_at<T>(args_.v, sequence.begin + first, kv_head);
        with_isa<LoadRowsBody>(isa_, k, args_.k.stride[0], b.keys, row_stride(), keys.size(), keys.size(),
                               head_dim_, 1.0f);
        const Left values = pack_left(isa_, true, head_dim_, keys.size(), v, args_.v.stride[0], b.values);
        for (int64_t part = 0; part < heads_; ++part) add_keys(band, queries, keys, values, part, b);
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
