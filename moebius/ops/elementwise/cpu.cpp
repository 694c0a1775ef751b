#include "moebius/ops/elementwise/cpu.h"

#include <algorithm>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

// Elements a piece works on: depends on nothing but this constant.
constexpr int64_t kPiece = 1 << 16;

struct ConvertBody {
    template <Isa, class From, class To>
    MOEBIUS_INLINE static void run(const From* x, To* out, int64_t count) {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(out + i, load(x + i));
        if (i < count) store_partial(out + i, load_partial(x + i, count - i), count - i);
    }
};

struct AddBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const T* x, const T* y, T* out, int64_t count) {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(out + i, load(x + i) + load(y + i));
        const int64_t rest = count - i;
        if (rest > 0) store_partial(out + i, load_partial(x + i, rest) + load_partial(y + i, rest), rest);
    }
};

template <class F>
void in_pieces(int64_t count, const Exec& exec, F&& f) {
    exec.parallel(ceil_div(count, kPiece), [&](int64_t piece, int) {
        const int64_t begin = piece * kPiece;
        f(begin, std::min(kPiece, count - begin));
    });
}

}  // namespace

void convert(const ConvertArgs& args, const Exec& exec) {
    with_float_type(args.x.dtype, [&](auto from) {
        with_float_type(args.out.dtype, [&](auto to) {
            const auto* x = args.x.as<decltype(from)>();
            auto* out = args.out.as<decltype(to)>();
            in_pieces(args.x.numel(), exec, [&](int64_t begin, int64_t count) {
                with_isa<ConvertBody>(exec.device->isa(), x + begin, out + begin, count);
            });
        });
    });
}

void add(const AddArgs& args, const Exec& exec) {
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const T* x = args.x.as<T>();
        const T* y = args.y.as<T>();
        T* out = args.out.as<T>();
        in_pieces(args.x.numel(), exec, [&](int64_t begin, int64_t count) {
            with_isa<AddBody>(exec.device->isa(), x + begin, y + begin, out + begin, count);
        });
    });
}

void jitter(const JitterArgs& args, const Exec& exec) {
    const Philox random(args.seed, args.purpose);
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const T* x = args.x.as<T>();
        T* out = args.out.as<T>();
        in_pieces(args.x.numel(), exec, [&](int64_t begin, int64_t count) {
            for (int64_t i = begin; i < begin + count; ++i) {
                const double unit = random.uniform(static_cast<uint64_t>(args.first_index + i));
                const auto factor = static_cast<float>(1.0 + args.epsilon * (2.0 * unit - 1.0));
                store_as(out + i, to_float(x[i]) * factor);
            }
        });
    });
}

void sum_into(const SumArgs& args, const Exec& exec) {
    const float* x = args.x.as<float>();
    const int64_t count = args.x.numel();
    std::vector<double> partial(static_cast<size_t>(ceil_div(count, kPiece)));
    in_pieces(count, exec, [&](int64_t begin, int64_t size) {
        double total = 0;
        for (int64_t i = begin; i < begin + size; ++i) total += static_cast<double>(x[i]);
        partial[static_cast<size_t>(begin / kPiece)] = total;
    });
    double total = 0;
    for (const double part : partial) total += part;
    float* out = args.out.as<float>();
    *out = static_cast<float>(static_cast<double>(*out) + total);
}

}  // namespace moebius::ops::cpu
