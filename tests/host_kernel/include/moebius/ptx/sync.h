#pragma once

namespace moebius::ptx {

inline void fence_async_shared() {}

}  // namespace moebius::ptx
