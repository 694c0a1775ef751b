#include "moebius/ops/embedding/embedding.h"

#include "moebius/ops/embedding/cpu.h"
#include "moebius/ops/embedding/cuda.h"

namespace moebius::ops {
namespace {

constexpr Variant<EmbeddingArgs> kEmbedding[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<EmbeddingArgs>, MOEBIUS_CUDA(cuda::embedding)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<EmbeddingArgs>, cpu::embedding}};
constexpr Variant<EmbeddingBackwardArgs> kEmbeddingBackward[] = {
    {"cuda_any", DeviceKind::Cuda, 80, 999, always<EmbeddingBackwardArgs>,
     MOEBIUS_CUDA(cuda::embedding_backward)},
    {"cpu", DeviceKind::Cpu, 0, 0, always<EmbeddingBackwardArgs>, cpu::embedding_backward}};

void check_shapes(const View& ids, const View& table, const View& rows) {
    MOEBIUS_CHECK(ids.rank() == 1 && ids.dtype == DType::I32 && ids.contiguous(), "ids: ", name(ids.dtype),
                  " ", ids.shape.str());
    MOEBIUS_CHECK(table.rank() == 2 && table.size(0) > 0 && table.stride[1] == 1,
                  "table: ", table.shape.str());
    MOEBIUS_CHECK(rows.rank() == 2 && rows.size(0) == ids.size(0) && rows.size(1) == table.size(1) &&
                      rows.stride[1] == 1,
                  "rows ", rows.shape.str(), " of ", ids.size(0), " ids, table ", table.shape.str());
}

}  // namespace

Cost cost(const EmbeddingArgs& a) {
    return {0, static_cast<double>(a.ids.bytes() + 2 * a.out.bytes())};
}
Cost cost(const EmbeddingBackwardArgs& a) {
    const double table_passes = a.beta == 0 ? 1 : 2;
    return {static_cast<double>(a.dout.numel()), static_cast<double>(a.ids.bytes() + a.dout.bytes()) +
                                                     table_passes * static_cast<double>(a.dtable.bytes())};
}

void embedding(const EmbeddingArgs& a, const Exec& exec) {
    check_shapes(a.ids, a.table, a.out);
    MOEBIUS_CHECK(a.table.dtype == a.out.dtype, name(a.table.dtype), " to ", name(a.out.dtype));
    MOEBIUS_CHECK(!a.bad || a.bad.numel() == 1, a.bad.shape.str());
    dispatch<EmbeddingArgs>("embedding", kEmbedding, a, exec, cost(a));
}

void embedding_backward(const EmbeddingBackwardArgs& a, const Exec& exec) {
    check_shapes(a.ids, a.dtable, a.dout);
    MOEBIUS_CHECK(a.dtable.dtype == DType::F32 || a.dtable.dtype == DType::BF16,
                  "dtable: ", name(a.dtable.dtype));
    MOEBIUS_CHECK(a.padding_idx >= -1 && a.padding_idx < a.dtable.size(0), "padding_idx ", a.padding_idx,
                  " of ", a.dtable.size(0), " rows");
    dispatch<EmbeddingBackwardArgs>("embedding_backward", kEmbeddingBackward, a, exec, cost(a));
}

std::vector<VariantInfo> embedding_variants() {
    return describe<EmbeddingArgs>(kEmbedding);
}
std::vector<VariantInfo> embedding_backward_variants() {
    return describe<EmbeddingBackwardArgs>(kEmbeddingBackward);
}

}  // namespace moebius::ops
