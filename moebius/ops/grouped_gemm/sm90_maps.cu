#include "moebius/ops/grouped_gemm/sm90_maps.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::sm90 {
namespace {

constexpr cuuint64_t kAlignmentBytes = 16;
constexpr int64_t kBoxBytes = 128;

// The driver's function, without linking the driver: the program also starts where there is none.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &found),
               "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || function == nullptr)
        throw DeviceError("the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMapDataType element_type(DType dtype) {
    if (dtype == DType::BF16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return dtype == DType::F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

// A box of `box_columns` × `box_rows` of a view of two or three axes.
CUtensorMap encode_map(const View& view, int64_t box_columns, int64_t box_rows, CUtensorMapSwizzle swizzle) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    const auto size = static_cast<cuuint64_t>(bits(view.dtype) / 8);
    const size_t last = static_cast<size_t>(view.rank()) - 1;
    const auto extent = [&](size_t axis) {
        return static_cast<cuuint64_t>(std::max<int64_t>(1, view.size(static_cast<int>(axis))));
    };
    // A stride of an axis of one element is never used, but must be legal.
    const auto stride = [&](size_t axis, cuuint64_t least) {
        return extent(axis) > 1 ? static_cast<cuuint64_t>(view.stride[axis]) * size
                                : (least + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    };
    const bool experts = view.rank() == 3;
    const cuuint64_t row = stride(last - 1, extent(last) * size);
    const cuuint64_t sizes[3] = {extent(last), extent(last - 1), experts ? extent(0) : 1};
    const cuuint64_t strides[2] = {row, experts ? stride(0, row * sizes[1]) : row * sizes[1]};
    const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows), 1};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUtensorMap map{};
    const CUresult result = encode(&map, element_type(view.dtype), 3, view.data, sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        throw DeviceError("no tensor map for a view " + view.shape.str() + " of rows " + std::to_string(row) +
                          " bytes apart: CUDA error " + std::to_string(static_cast<int>(result)));
    }
    return map;
}

}  // namespace

CUtensorMap tensor_map(const View& view, int64_t box_rows) {
    return encode_map(view, kBoxBytes * 8 / bits(view.dtype), box_rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap scale_map(const View& view, int64_t box_columns) {
    return encode_map(view, box_columns, 1, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace moebius::ops::sm90
