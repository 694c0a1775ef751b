// Matrix products of a warpgroup on the tensor cores, operands in shared memory (wgmma, sm_90a).
//
// Operand tiles lie as TMA writes boxes 128 bytes wide with the 128-byte swizzle, at multiples of 1,024
// bytes:
//   K-major   rows of 64 bf16 along K; row r (of M or N) at 128·r bytes.       16 deeper along K: + 32 bytes
//   MN-major  boxes of 64 bf16 along M or N; row k of a box at 128·k bytes,
//             the next 64 of M or N in the next box.                           16 deeper along K: + 2,048
//             bytes
#pragma once

namespace moebius::ptx {

namespace detail {
// Bits 0–13 address, 16–29 leading offset, 32–45 stride offset, each / 16; 62–63: 1 = 128-byte swizzle.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    return (uint64_t{1} << 62) | (static_cast<uint64_t>(stride >> 4) << 32) |
           (static_cast<uint64_t>(leading >> 4) << 16) | ((address & 0x3FFFFu) >> 4);
}
}  // namespace detail

// Stride: from 8 rows to the next 8. The leading offset means nothing here.
__device__ __forceinline__ uint64_t k_major_descriptor(uint32_t address) {
    return detail::descriptor(address, 16, 1024);
}
// Stride: from 8 deep to the next 8. Leading: from a box to the next, `box_bytes` = 128 · its depth.
__device__ __forceinline__ uint64_t mn_major_descriptor(uint32_t address, uint32_t box_bytes) {
    return detail::descriptor(address, box_bytes, 1024);
}
// Of the tile `bytes` further on.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
    return descriptor + (bytes >> 4);
}

// Before the first product that reads or writes registers which other instructions wrote.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups are not done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// wgmma_wait<0> for one of two branches of which the other has that: spelled otherwise, so that the compiler
// does not make one wait of both. It moves a wait up, before all arithmetic of the same block of code that
// needs no result of a product; a branch it leaves where it is.
__device__ __forceinline__ void wgmma_wait_in_branch() {
    asm volatile("wgmma.wait_group.sync.aligned 0; // in a branch" ::: "memory");
}
// Keeps the compiler from moving uses of the sums across a wait or fence.
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// d (64, 256) = a (64, 16) · b (256, 16)^T + (add ? d : 0). Element (row, column) of d: with w the warp in
// the group and l the lane, d[4 · (column / 8) + 2 · (row / 8 % 2) + column % 2] of the thread with 16·w + l
// / 4 = row up to the 8s and 2 · (l % 4) = column % 8 up to the 1s.
template <bool kAMnMajor, bool kBMnMajor>
__device__ __forceinline__ void wgmma_64x256x16(float (&d)[128], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, add, 1, 1, %131, %132;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),
          "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),
          "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]),
          "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),
          "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
          "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),
          "+f"(d[127])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kAMnMajor ? 1 : 0), "n"(kBMnMajor ? 1 : 0));
}

}  // namespace moebius::ptx
