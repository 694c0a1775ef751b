#include "moebius/tensor/parameter.h"

#include <algorithm>

#include "moebius/base/philox.h"
#include "moebius/tensor/staging.h"

namespace moebius {
namespace {

constexpr int64_t kPiece = 1 << 16;
// Parameters start at whole cache lines of any dtype used here.
constexpr int64_t kAlign = 64;

View slice_of(const View& flat, int64_t begin, const Shape& shape) {
    return flat ? flat.rows(begin, shape.numel()).reshaped(shape) : View();
}

template <class F>
void in_pieces(int64_t count, const Exec& exec, F&& f) {
    exec.parallel(ceil_div(count, kPiece),
                  [&](int64_t piece, int) { f(piece * kPiece, std::min(count, (piece + 1) * kPiece)); });
}

void write(const View& flat, int64_t index, float value) {
    if (flat.dtype == DType::BF16) {
        flat.as<BF16>()[index] = to_bf16(value);
    } else {
        flat.as<float>()[index] = value;
    }
}

// Elements [begin, begin + piece.numel()) of this rank's part of the parameter; `piece` is host memory.
void fill_piece(const Parameter& p, uint64_t seed, const View& piece, int64_t begin, const Exec& exec) {
    const Philox random(seed, p.spec.name);
    const int64_t row = p.spec.shape.numel() / std::max<int64_t>(1, p.spec.shape[0]);
    in_pieces(piece.numel(), exec, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
            const int64_t element = p.slice.begin + begin + i;
            float value = p.spec.init == Init::Ones ? 1.0f : 0.0f;
            if (p.spec.init == Init::Normal && element / row != p.spec.zero_row) {
                value = static_cast<float>(p.spec.init_std * random.normal(static_cast<uint64_t>(element)));
            }
            write(piece, i, value);
        }
    });
}

// Both host memory, of the same length.
void convert_piece(const View& from, const View& to, const Exec& exec) {
    in_pieces(from.numel(), exec, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float value =
                from.dtype == DType::BF16 ? to_float(from.as<BF16>()[i]) : from.as<float>()[i];
            write(to, i, value);
        }
    });
}

void convert_flat(const View& from, const View& to, const Exec& exec) {
    if (exec.dry || !from || !to || from.data == to.data) return;
    const HostStaging source(exec), target(exec);
    source.read(from, [&](const View& wide, int64_t begin) {
        target.write(to.rows(begin, wide.numel()), [&](const View& piece, int64_t at) {
            convert_piece(wide.rows(at, piece.numel()), piece, exec);
        });
    });
}

}  // namespace

int64_t bytes_per_parameter(const PlaceOptions& o) {
    const auto bytes = [](DType dtype) { return bits(dtype) / 8; };
    int64_t total = bytes(o.dtype);
    if (o.train) total += bytes(o.grad_dtype);
    if (!o.train || o.gradients_only) return total;
    const int64_t masters = o.dtype == DType::F32              ? 0
                            : o.masters == Masters::Float32    ? bytes(DType::F32)
                            : o.masters == Masters::Remainders ? bytes(DType::I16)
                                                               : 0;
    return total + masters + 2 * bytes(o.state_dtype);
}

Parameter* ParameterSet::declare(ParameterSpec spec) {
    MOEBIUS_CHECK(find(spec.name) == nullptr, "parameter ", spec.name, " is declared twice");
    auto parameter = std::make_unique<Parameter>();
    parameter->slice = {spec.name, spec.shape, 0, spec.shape.numel()};
    parameter->spec = std::move(spec);
    parameter->offset = numel_;
    numel_ += round_up(parameter->slice.count, kAlign);
    parameters_.push_back(std::move(parameter));
    return parameters_.back().get();
}

void ParameterSet::place(const PlaceOptions& options, const Exec& exec) {
    options_ = options;
    numel_ = narrow_ = 0;
    for (const auto& p : parameters_) p->wide = p->wide && options.dtype != DType::F32;
    for (Parameter* p : in_order()) {
        p->offset = numel_;
        numel_ += round_up(p->slice.count, kAlign);
        if (!p->wide) narrow_ = numel_;
    }
    MOEBIUS_CHECK(narrow_ == numel_ ||
                      (options.train && !options.gradients_only && options.masters == Masters::Float32),
                  "wide parameters are their own f32 masters, but there are none");
    const Shape flat{numel_};
    values_ = Tensor::zeros("weights", {narrow_}, options.dtype, exec);
    if (options.train) {
        gradients_ = Tensor::zeros("main_grad", flat, options.grad_dtype, exec);
        if (!options.gradients_only) {
            if (options.dtype == DType::F32) {
                masters_ = values_;
            } else if (options.masters == Masters::Float32) {
                masters_ = Tensor::zeros("masters", flat, DType::F32, exec);
            } else if (options.masters == Masters::Remainders) {
                remainders_ = Tensor::zeros("master_remainders", flat, DType::I16, exec);
            }
            m_ = Tensor::zeros("adamw.m", flat, options.state_dtype, exec);
            v_ = Tensor::zeros("adamw.v", flat, options.state_dtype, exec);
        }
    }
    for (const auto& p : parameters_) {
        p->value = slice_of(p->wide ? masters_ : values_, p->offset, p->spec.shape);
        p->main_grad = slice_of(gradients_, p->offset, p->spec.shape);
        p->master = slice_of(masters_, p->offset, p->spec.shape);
        p->remainder = slice_of(remainders_, p->offset, p->spec.shape);
        p->m = slice_of(m_, p->offset, p->spec.shape);
        p->v = slice_of(v_, p->offset, p->spec.shape);
    }
}

void ParameterSet::fill(uint64_t seed, const Exec& exec) {
    if (exec.dry) return;
    if (remainders_) return fill_split(seed, exec);
    // Masters keep the bits that rounding to the values drops.
    const View target = masters_ ? masters_.view() : values_.view();
    const bool rounded = target.data != values_.view().data;
    const HostStaging filled(exec), converted(exec);
    for (const auto& p : parameters_) {
        filled.write(target.rows(p->offset, p->slice.count), [&](const View& piece, int64_t begin) {
            fill_piece(*p, seed, piece, begin, exec);
            if (!rounded || p->wide) return;
            converted.write(values_.view().rows(p->offset + begin, piece.numel()),
                            [&](const View& narrow, int64_t at) {
                                convert_piece(piece.rows(at, narrow.numel()), narrow, exec);
                            });
        });
        ++p->version;
    }
}

void ParameterSet::fill_split(uint64_t seed, const Exec& exec) {
    const HostStaging staging(exec);
    for (const auto& p : parameters_) {
        staging.write_split(
            values_.view().rows(p->offset, p->slice.count),
            remainders_.view().rows(p->offset, p->slice.count),
            [&](const View& piece, int64_t begin) { fill_piece(*p, seed, piece, begin, exec); });
        ++p->version;
    }
}

void ParameterSet::masters_from_values(const Exec& exec) {
    if (masters_) convert_flat(values_, masters_.view().rows(0, narrow_), exec);
    if (remainders_) fill_zero(remainders_, exec);
}

void ParameterSet::begin_step() {
    for (const auto& p : parameters_) p->fresh = true;
}

void ParameterSet::touch() {
    for (const auto& p : parameters_) ++p->version;
}

void ParameterSet::finish_gradients(const Exec& exec) {
    for (const auto& p : parameters_) {
        if (p->take_fresh() == 0.0f) fill_zero(p->main_grad, exec);
    }
}

Parameter* ParameterSet::find(const std::string& name) const {
    for (const auto& p : parameters_) {
        if (p->spec.name == name) return p.get();
    }
    return nullptr;
}

std::vector<Segment> ParameterSet::segments() const {
    std::vector<Segment> segments;
    for (const Parameter* p : in_order()) {
        const int64_t count = round_up(p->slice.count, kAlign);
        if (!segments.empty() && segments.back().owner == p->spec.owner &&
            segments.back().decay == p->spec.decay && segments.back().wide == p->wide) {
            segments.back().count += count;
        } else {
            segments.push_back({p->offset, count, p->spec.owner, p->spec.decay, p->wide});
        }
    }
    return segments;
}

std::vector<Parameter*> ParameterSet::in_order() const {
    std::vector<Parameter*> order;
    for (const bool wide : {false, true}) {
        for (const auto& p : parameters_) {
            if (p->wide == wide) order.push_back(p.get());
        }
    }
    return order;
}

std::vector<StateEntry> ParameterSet::state(bool optimizer) const {
    std::vector<StateEntry> entries;
    const auto add = [&](const Parameter& p, const View& view, StateKind kind) {
        if (view) entries.push_back({p.slice, view.reshaped({p.slice.count}), kind});
    };
    for (const auto& p : parameters_) {
        add(*p, p->value, StateKind::Weight);
        if (!optimizer) continue;
        if (p->master.data != p->value.data) add(*p, p->master, StateKind::Master);
        if (p->remainder) {
            add(*p, p->value, StateKind::Master);
            entries.back().remainder = p->remainder.reshaped({p->slice.count});
        }
        add(*p, p->m, StateKind::Moment1);
        add(*p, p->v, StateKind::Moment2);
    }
    return entries;
}

}  // namespace moebius
