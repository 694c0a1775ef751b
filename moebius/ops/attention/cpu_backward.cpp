// Backward: a piece owns the gradients of a stretch of keys of one kv head. It walks over the group's query
// heads and their tiles of queries, recomputes the probabilities from the log-sums, and adds to dk and dv in
// scratch. Where a sequence is one piece's, dq is whole when a tile of queries is done. A sequence that is a
// large share of all work is cut into several stretches of keys; each leaves its part of dq, and the parts
// are added in order afterwards.
#include "moebius/ops/attention/cpu.h"
#include "moebius/ops/attention/cpu_tiles.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kPieces = 16;     // as many at least, if there is work for them
constexpr int64_t kMostChunks = 8;  // of a sequence's keys

// scores → p = e^(score · scale − lse), dscores (from dp) → p · (dp − delta), both (keys, kQueries); zeros
// where a query doesn't see a key. dscores once more to `panels` (of `rows` keys), the right operand of dq.
struct ScoreGradientBody {
    template <Isa isa>
    MOEBIUS_INLINE static void run(Band band, Range queries, Range keys, float* scores, float* dscores,
                                   float* panels, int64_t rows, float scale, const float* lse,
                                   const float* delta) {
        for (int64_t lanes = 0; lanes < queries.size(); lanes += kLanes) {
            const int64_t query = queries.begin + lanes;
            const int64_t origin = lanes - keys.begin * kQueries;
            float* panel = panels + panel_offset<isa>(lanes, rows) - keys.begin * kPanel<isa>;
            const F16 log_sum = load(lse + lanes), mean = load(delta + lanes);
            const auto keep = [&](int64_t key, F16 p, F16 ds) MOEBIUS_ATTENTION_LAMBDA {
                store(scores + origin + key * kQueries, p);
                store(dscores + origin + key * kQueries, ds);
                store_panel<isa>(panel + key * kPanel<isa>, rows, ds);
            };
            const Range any = each_key(
                band, {query, query + kLanes}, keys,
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA {
                    const I16 seen = visible(query, key, band.window);
                    const F16 p = exp_below_one(load(scores + origin + key * kQueries) * scale - log_sum);
                    const F16 ds = p * (load(dscores + origin + key * kQueries) - mean);
                    keep(key, select(seen, p, F16{}), select(seen, ds, F16{}));
                },
                [&](int64_t key) MOEBIUS_ATTENTION_LAMBDA {
                    const F16 p = exp_below_one(load(scores + origin + key * kQueries) * scale - log_sum);
                    keep(key, p, p * (load(dscores + origin + key * kQueries) - mean));
                });
            for (int64_t key = keys.begin; key < std::min(any.begin, keys.end); ++key)
                keep(key, F16{}, F16{});
            for (int64_t key = std::max(any.end, keys.begin); key < keys.end; ++key) keep(key, F16{}, F16{});
        }
    }
};

// delta of a query: Σ dout · out, added to what is there.
struct DeltaBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const float* dout, int64_t dout_stride, const T* out, int64_t out_stride,
                                   int64_t count, int64_t width, float* delta) {
        for (int64_t row = 0; row < count; ++row) {
            F16 total{};
            for (int64_t j = 0; j < width; j += kLanes) {
                const int64_t some = std::min(kLanes, width - j);
                total += load(dout + row * dout_stride + j) * load_some(out + row * out_stride + j, some);
            }
            delta[row] += sum(total);
        }
    }
};

// One chunk's part of dq: rows of `queries`.
struct Partial {
    float* rows;
    Range queries;
};

struct SumPartialsBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const Partial* parts, int64_t count, int64_t stride, Range queries, T* to,
                                   int64_t to_stride, int64_t width, float factor) {
        for (int64_t query = queries.begin; query < queries.end; ++query) {
            for (int64_t j = 0; j < width; j += kLanes) {
                F16 total{};
                for (const Partial* part = parts; part < parts + count; ++part) {
                    if (query < part->queries.begin || query >= part->queries.end) continue;
                    total += load(part->rows + (query - part->queries.begin) * stride + j);
                }
                store_some(to + (query - queries.begin) * to_stride + j, total * factor,
                           std::min(kLanes, width - j));
            }
        }
    }
};

struct Piece {
    Sequence sequence;
    int64_t index = 0;  // of the sequence
    int64_t kv_head = 0;
    Range keys, queries;   // it owns; that see them
    int64_t chunks = 1;    // of the sequence
    int64_t partials = 0;  // where its parts of dq begin in scratch, floats; if chunks > 1
    double work = 0;
};

class Backward {
  public:
    Backward(const AttentionBackwardArgs& args, Isa isa)
        : args_(args),
          isa_(isa),
          head_dim_(args.q.size(2)),
          width_(round_up(head_dim_, 2 * kLanes)),
          columns_(round_up(head_dim_, tile_columns(isa))),
          group_(args.q.size(1) / args.k.size(1)),
          tile_(keys_of_tile(isa)),
          scale_(args.shape.scale) {}

    void run(const Exec& exec);

  private:
    // One thread's.
    struct Buffers {
        // Of the piece's keys:
        float *keys, *values;  // fp32 rows, row_stride() apart
        float* keys_left;      // keys transposed as left operands, one a tile
        float *dk, *dv;        // (keys, width)
        // Of a tile of queries:
        float *packed_q, *packed_dout;  // scaled queries and dout as right operands of the scores and of dp
        float *right_q, *right_dout;    // and of dk and dv
        float* rows;                    // (kQueries, width), to turn them and dq
        float* dq;                      // (head_dim, kQueries)
        float *lse, *delta;             // (kQueries)
        // Of a tile of scores:
        float *scores, *dscores;  // (keys, kQueries)
        float* panels;            // dscores as right operand
    };
    Buffers carve(Carver& carver, int64_t most_keys) const;
    int64_t row_stride() const { return good_row_stride(head_dim_); }
    int64_t left_floats() const { return packed_left_floats(isa_, true, head_dim_, tile_); }

    std::vector<Piece> plan(const std::vector<Sequence>& sequences, int64_t& partial_floats) const;
    template <class T>
    void piece(const Piece& p, float* partials, const Buffers& b) const;
    template <class T>
    void load_keys(const Piece& p, const Buffers& b) const;
    template <class T>
    void load_queries(const Piece& p, Range queries, int64_t head, const Buffers& b) const;
    void add_tile(const Piece& p, Band band, Range queries, Range all, int64_t index, const Buffers& b) const;
    template <class T>
    void sum_partials(const std::vector<Piece>& pieces, float* partials, const Exec& exec) const;

    const AttentionBackwardArgs& args_;
    Isa isa_;
    int64_t head_dim_;
    int64_t width_;    // stride of rows in scratch
    int64_t columns_;  // head_dim in whole register tiles
    int64_t group_;    // query heads of a kv head
    int64_t tile_;     // keys of a tile
    SplitScale scale_;
};

Backward::Buffers Backward::carve(Carver& carver, int64_t most_keys) const {
    Buffers b;
    b.keys = carver.take(most_keys * row_stride());
    b.values = carver.take(most_keys * row_stride());
    b.keys_left = carver.take(ceil_div(most_keys, tile_) * left_floats());
    b.dk = carver.take(most_keys * width_);
    b.dv = carver.take(most_keys * width_);
    b.packed_q = carver.take(packed_right_floats(isa_, head_dim_, kQueries));
    b.packed_dout = carver.take(packed_right_floats(isa_, head_dim_, kQueries));
    b.right_q = carver.take(packed_right_floats(isa_, kQueries, columns_));
    b.right_dout = carver.take(packed_right_floats(isa_, kQueries, columns_));
    b.rows = carver.take(std::max(kQueries * width_, transposed_floats(isa_, head_dim_)));
    b.dq = carver.take(head_dim_ * kQueries);
    b.lse = carver.take(kQueries);
    b.delta = carver.take(kQueries);
    b.scores = carver.take(tile_ * kQueries);
    b.dscores = carver.take(tile_ * kQueries);
    b.panels = carver.take(tile_ * kQueries);
    return b;
}

// Pairs that see each other in a sequence.
double work_of(Band band, int64_t length) {
    const auto window = static_cast<double>(band.window);
    return window * (static_cast<double>(length) - (window - 1) / 2);
}

std::vector<Piece> Backward::plan(const std::vector<Sequence>& sequences, int64_t& partial_floats) const {
    const int64_t kv_heads = args_.k.size(1);
    double total = 0;
    for (const Sequence& s : sequences) total += work_of(band_of(args_.shape, s.length), s.length);
    std::vector<Piece> pieces;
    partial_floats = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
        const Sequence& s = sequences[i];
        const Band band = band_of(args_.shape, s.length);
        const double share = work_of(band, s.length) / (total * static_cast<double>(kv_heads));
        const auto wanted = static_cast<int64_t>(share * static_cast<double>(kPieces) + 0.999);
        const int64_t most = std::min(kMostChunks, ceil_div(s.length, 2 * tile_));
        const int64_t size = round_up(ceil_div(s.length, std::clamp<int64_t>(wanted, 1, most)), tile_);
        const int64_t chunks = ceil_div(s.length, size);
        for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                Piece p{
                    .sequence = s, .index = static_cast<int64_t>(i), .kv_head = kv_head, .chunks = chunks};
                p.keys = {chunk * size, std::min((chunk + 1) * size, s.length)};
                p.queries = intersection(band.queries_of(p.keys), {0, s.length});
                p.partials = partial_floats;
                if (chunks > 1) partial_floats += group_ * p.queries.size() * width_;
                // What the chunk's last query sees less what came before its keys, roughly.
                p.work = static_cast<double>(p.keys.size()) *
                         (static_cast<double>(p.queries.size()) - 0.5 * static_cast<double>(p.keys.size()));
                pieces.push_back(p);
            }
        }
    }
    return pieces;
}

template <class T>
void Backward::load_keys(const Piece& p, const Buffers& b) const {
    const int64_t first = p.sequence.begin + p.keys.begin, count = p.keys.size();
    const T* k = head_at<T>(args_.k, first, p.kv_head);
    const T* v = head_at<T>(args_.v, first, p.kv_head);
    with_isa<LoadRowsBody>(isa_, k, args_.k.stride[0], b.keys, row_stride(), count, count, head_dim_, 1.0f);
    with_isa<LoadRowsBody>(isa_, v, args_.v.stride[0], b.values, row_stride(), count, count, head_dim_, 1.0f);
    for (int64_t row = 0; row < count; row += tile_) {
        pack_left(isa_, true, head_dim_, std::min(tile_, count - row), b.keys + row * row_stride(),
                  row_stride(), b.keys_left + row / tile_ * left_floats());
    }
    std::fill_n(b.dk, count * width_, 0.0f);
    std::fill_n(b.dv, count * width_, 0.0f);
}

template <class T>
void Backward::load_queries(const Piece& p, Range queries, int64_t head, const Buffers& b) const {
    const int64_t first = p.sequence.begin + queries.begin, count = queries.size();
    const T* q = head_at<T>(args_.q, first, head);
    with_isa<LoadRowsBody>(isa_, q, args_.q.stride[0], b.rows, width_, count, kQueries, head_dim_,
                           scale_.power);
    pack_right(isa_, true, head_dim_, kQueries, b.rows, width_, b.packed_q);
    pack_right(isa_, false, count, head_dim_, b.rows, width_, b.right_q);

    const T* dout = head_at<T>(args_.dout, first, head);
    with_isa<LoadRowsBody>(isa_, dout, args_.dout.stride[0], b.rows, width_, count, kQueries, head_dim_,
                           1.0f);
    pack_right(isa_, true, head_dim_, kQueries, b.rows, width_, b.packed_dout);
    pack_right(isa_, false, count, head_dim_, b.rows, width_, b.right_dout);

    std::fill_n(b.delta, kQueries, 0.0f);
    for (const View& out : {args_.out, args_.out_rest}) {
        if (!out.data) continue;
        const T* rows = head_at<T>(out, first, head);
        with_isa<DeltaBody>(isa_, static_cast<const float*>(b.rows), width_, rows, out.stride[0], count,
                            head_dim_, b.delta);
    }
    std::copy_n(args_.lse.as<float>() + head * args_.lse.stride[0] + first, count, b.lse);
    std::fill(b.lse + count, b.lse + kQueries, 0.0f);
    std::fill_n(b.dq, head_dim_ * kQueries, 0.0f);
}

// One tile of queries with tile `index` of the piece's keys; `all`: the piece's keys that any of them sees.
void Backward::add_tile(const Piece& p, Band band, Range queries, Range all, int64_t index,
                        const Buffers& b) const {
    const int64_t row = index * tile_;
    const int64_t depth = std::min(tile_, p.keys.size() - row);
    const Range keys = intersection({p.keys.begin + row, p.keys.begin + row + depth}, {0, all.end});
    const int64_t columns = tile_columns(isa_), queries_depth = queries.size() * columns;
    const Left k{b.keys + row * row_stride(), row_stride()}, v{b.values + row * row_stride(), row_stride()};
    const Left k_transposed{b.keys_left + index * left_floats(), 0, panel_rows(isa_) * depth};
    tile_scores(isa_, band, queries, keys, k, {b.packed_q, head_dim_ * columns}, head_dim_,
                {b.scores, kQueries}, columns);
    tile_scores(isa_, band, queries, keys, v, {b.packed_dout, head_dim_ * columns}, head_dim_,
                {b.dscores, kQueries}, columns);
    with_isa<ScoreGradientBody>(isa_, band, queries, keys, b.scores, b.dscores, b.panels, tile_, scale_.rest,
                                static_cast<const float*>(b.lse), static_cast<const float*>(b.delta));
    add_plain(isa_, band, queries, keys, b.scores, {b.right_dout, queries_depth}, columns_,
              {b.dv + row * width_, width_});
    // A part of the scale is in right_q already, the rest comes when dk is stored.
    add_plain(isa_, band, queries, keys, b.dscores, {b.right_q, queries_depth}, columns_,
              {b.dk + row * width_, width_});
    add_transposed(isa_, band, queries, keys, k_transposed, {b.panels, tile_ * columns}, head_dim_, b.dq);
}

template <class T>
void Backward::piece(const Piece& p, float* partials, const Buffers& b) const {
    const Band band = band_of(args_.shape, p.sequence.length);
    const float one = 1;
    load_keys<T>(p, b);
    for (int64_t member = 0; member < group_; ++member) {
        const int64_t head = p.kv_head * group_ + member;
        for (int64_t first = p.queries.begin; first < p.queries.end; first += kQueries) {
            const Range queries{first, std::min(first + kQueries, p.queries.end)};
            load_queries<T>(p, queries, head, b);
            const Range all = intersection(band.keys_of(queries), p.keys);
            for (int64_t index = (all.begin - p.keys.begin) / tile_; index * tile_ < all.end - p.keys.begin;
                 ++index)
                add_tile(p, band, queries, all, index, b);
            if (p.chunks > 1) {
                float* rows =
                    partials + p.partials + (member * p.queries.size() + first - p.queries.begin) * width_;
                store_transposed(isa_, b.dq, b.rows, queries.size(), head_dim_, rows, width_, &one, 0);
            } else {
                T* dq = head_at<T>(args_.dq, p.sequence.begin + first, head);
                store_transposed(isa_, b.dq, b.rows, queries.size(), head_dim_, dq, args_.dq.stride[0],
                                 &args_.shape.scale, 0);
            }
        }
    }
    const int64_t first = p.sequence.begin + p.keys.begin;
    T* dk = head_at<T>(args_.dk, first, p.kv_head);
    T* dv = head_at<T>(args_.dv, first, p.kv_head);
    with_isa<StoreRowsBody>(isa_, static_cast<const float*>(b.dk), width_, dk, args_.dk.stride[0],
                            p.keys.size(), head_dim_, &scale_.rest, int64_t{0});
    with_isa<StoreRowsBody>(isa_, static_cast<const float*>(b.dv), width_, dv, args_.dv.stride[0],
                            p.keys.size(), head_dim_, &one, int64_t{0});
}

// dq of the sequences that were cut: pieces of a sequence and kv head follow each other in `pieces`.
template <class T>
void Backward::sum_partials(const std::vector<Piece>& pieces, float* partials, const Exec& exec) const {
    constexpr int64_t kRows = 64;  // of a piece of work
    for (size_t i = 0; i < pieces.size(); i += static_cast<size_t>(pieces[i].chunks)) {
        const int64_t chunks = pieces[i].chunks, length = pieces[i].sequence.length;
        if (chunks == 1) continue;
        const int64_t tiles = ceil_div(length, kRows);
        exec.parallel(group_ * tiles, [&](int64_t index, int) {
            const int64_t member = index / tiles, first = index % tiles * kRows;
            Partial parts[kMostChunks];
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                const Piece& p = pieces[i + static_cast<size_t>(chunk)];
                parts[chunk] = {partials + p.partials + member * p.queries.size() * width_, p.queries};
            }
            const Range queries{first, std::min(first + kRows, length)};
            T* dq =
                head_at<T>(args_.dq, pieces[i].sequence.begin + first, pieces[i].kv_head * group_ + member);
            with_isa<SumPartialsBody>(isa_, static_cast<const Partial*>(parts), chunks, width_, queries, dq,
                                      args_.dq.stride[0], head_dim_, args_.shape.scale);
        });
    }
}

void Backward::run(const Exec& exec) {
    int64_t partial_floats = 0;
    const std::vector<Piece> pieces = plan(sequences_of(args_.shape, args_.q.size(0)), partial_floats);
    if (pieces.empty()) return;
    int64_t most_keys = 0;
    std::vector<const Piece*> order;  // most work first
    for (const Piece& p : pieces) {
        most_keys = std::max(most_keys, p.keys.size());
        order.push_back(&p);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Piece* a, const Piece* b) { return a->work > b->work; });

    Carver count(nullptr);
    carve(count, most_keys);
    const int64_t floats = count.used();
    const Scratch scratch("attention tiles",
                          static_cast<size_t>(exec.threads->size() * floats) * sizeof(float), exec);
    const Scratch partials("attention dq parts", static_cast<size_t>(partial_floats) * sizeof(float), exec);
    with_float_type(args_.q.dtype, [&](auto type) {
        using T = decltype(type);
        exec.parallel(static_cast<int64_t>(order.size()), [&](int64_t index, int thread) {
            Carver carver(scratch.as<float>() + thread * floats);
            piece<T>(*order[static_cast<size_t>(index)], partials.as<float>(), carve(carver, most_keys));
        });
        sum_partials<T>(pieces, partials.as<float>(), exec);
    });
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args, const Exec& exec) {
    Backward(args, exec.device->isa()).run(exec);
}

}  // namespace moebius::ops::cpu
