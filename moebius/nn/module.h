// Modules: explicit forward and backward, no tape. Forward returns what backward needs in a context that owns
// its memory; backward consumes it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/nn/run.h"
#include "moebius/tensor/parameter.h"

namespace moebius::nn {

class LowPrecisionLinear;

struct Context {
    virtual ~Context() = default;
    virtual int64_t bytes() const { return 0; }  // what it keeps alive, for the report
};
using ContextPtr = std::unique_ptr<Context>;

// Makes a tensor again, bit for bit, from others that are kept anyway.
class Remake {
  public:
    virtual ~Remake() = default;
    virtual Tensor make(Run& run) const = 0;
};

// The value between two modules: the rows of `high`, or, with `source`, rows gathered from it that nobody has
// written yet (row m is row source[m] / topk of `high`): who quantizes them reads them where they lie.
struct Activation {
    Tensor high;
    Tensor source = {};  // (M) i32
    int64_t topk = 1;
    std::shared_ptr<const Remake> again = {};  // makes `high`; null: who needs it later keeps it
    bool stays =
        false;  // who made `high` (and rstd) keeps it until backward, so who needs it later adds nothing
    // With these nobody has made the norm's output yet: it is `high` · rstd · norm_weight, for who quantizes
    // it.
    Tensor rstd = {};  // (T) f32
    const Parameter* norm_weight = nullptr;

    int64_t rows() const { return source ? source.shape()[0] : high.shape()[0]; }
};

// An input until backward: the tensor itself, or how to make it again.
class Kept {
  public:
    Kept() = default;
    explicit Kept(const Activation& x) : x_(x) {
        if (x_.again) x_.high.reset();
    }
    explicit operator bool() const { return x_.again != nullptr || x_.high; }
    Tensor get(Run& run) const { return x_.again ? x_.again->make(run) : x_.high; }
    // The same with what else the activation had: where its rows come from, what norm is not made yet.
    Activation activation(Run& run) const {
        Activation x = x_;
        x.high = get(run);
        return x;
    }
    int64_t bytes() const { return x_.high && !x_.stays ? x_.high.view().bytes() : 0; }
    void reset() { *this = Kept(); }

  private:
    Activation x_;
};

struct Forward {
    Activation y;
    ContextPtr context;  // null when run.pass.save is false
};

class Module {
  public:
    virtual ~Module() = default;
    virtual Forward forward(Activation x, Run& run) = 0;
    virtual Activation backward(ContextPtr context, Activation dy, Run& run) = 0;
};

// The context as the type its module made.
template <class T>
std::unique_ptr<T> take(ContextPtr context) {
    auto* typed = dynamic_cast<T*>(context.get());
    MOEBIUS_CHECK(typed != nullptr, "backward got no context of its own forward");
    context.release();
    return std::unique_ptr<T>(typed);
}

// Ops of a Sequential chain: the same, with extra inputs in and their gradients out.
enum class OpKind { GroupedLinear, ScaledGlu, Fused };

struct FusibleBackward {
    Activation dx;
    std::vector<Tensor> dextra;  // one an extra input, in order; empty for inputs without a gradient
};

class Fusible {
  public:
    virtual ~Fusible() = default;
    virtual OpKind kind() const = 0;
    virtual std::string name() const = 0;
    virtual int extra_inputs() const = 0;
    virtual Forward forward(Activation x, std::span<const Tensor> extra, Run& run) = 0;
    virtual FusibleBackward backward(ContextPtr context, Activation dy, Run& run) = 0;
    // Appends the linear layers that follow run.recipe.
    virtual void low_precision(std::vector<LowPrecisionLinear*>&) {}
};

}  // namespace moebius::nn
