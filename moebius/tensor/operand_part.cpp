#include "moebius/tensor/operand_part.h"

#include <fmt/format.h>

#include "moebius/base/error.h"

namespace moebius {

std::vector<ExpertPart> expert_parts(const MatrixShape& matrix, const View& split_sizes) {
    std::vector<ExpertPart> parts;
    ExpertPart part;
    const int64_t experts = split_sizes ? split_sizes.size(0) : matrix.experts;
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t rows = !split_sizes                      ? matrix.rows
                             : split_sizes.dtype == DType::I64 ? split_sizes.as<int64_t>()[e]
                                                               : int64_t{split_sizes.as<int32_t>()[e]};
        if (e == 0) {
            part.rows = rows;
        } else {
            part = part.next(rows);
        }
        if (rows < 0) throw Error(fmt::format("split_sizes[{}] = {} is negative", e, rows));
        if (split_sizes && rows > matrix.rows - part.first) {
            throw Error(
                fmt::format("split_sizes sum to more than the {} rows there are (at expert {}: {} + {})",
                            matrix.rows, e, part.first, rows));
        }
        parts.push_back(part);
    }
    return parts;
}

}  // namespace moebius
