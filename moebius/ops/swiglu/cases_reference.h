// The gated activation of one pair as cases of several operations compute it, in any arithmetic.
#pragma once

#include <algorithm>
#include <cmath>

#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops::reference {

// One pair's activation without the scale, and its derivatives.
template <class Real>
struct Glu {
    Real value, by_gate, by_up;
};
template <class Real>
Glu<Real> glu(Real gate, Real up, const GluOptions& options) {
    const bool clamped = options.kind == GluKind::ClampedQuickGeGlu;
    const Real limit = options.limit, alpha = clamped ? Real(options.alpha) : Real(1);
    const Real a = clamped && gate > limit ? limit : gate;
    const Real u = clamped ? std::min(std::max(up, -limit), limit) + Real(options.offset) : up;
    const Real s = Real(1) / (Real(1) + std::exp(-alpha * a));
    const Real by_gate = clamped && gate > limit ? Real(0) : s + alpha * a * s * (Real(1) - s);
    const Real by_up = clamped && (up > limit || up < -limit) ? Real(0) : Real(1);
    return {a * s * u, by_gate * u, a * s * by_up};
}

}  // namespace moebius::ops::reference
