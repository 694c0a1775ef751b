// A gated activation to see places by: its arithmetic is not what these tests are about.
#pragma once

namespace moebius::ptx {

struct GluConstants {
    float limit, alpha, offset;
};
struct GluPair {
    float value, up;
};
template <bool kClamped, bool kPrecise>
GluPair glu_pair(float gate, float up, const GluConstants& constants) {
    return {gate * constants.alpha, up};
}
inline float glu_forward(const GluPair& pair, float scale) {
    return scale * (pair.value * pair.up);
}

}  // namespace moebius::ptx
