#include "moebius/runtime/exec.h"

namespace moebius {

void VariantLog::record(const std::string& op, const std::string& chosen,
                        const std::vector<std::string>& passed_over, const Cost& cost) {
    for (Entry& entry : entries_) {
        if (entry.op == op && entry.chosen == chosen && entry.passed_over == passed_over) {
            ++entry.calls;
            entry.cost += cost;
            return;
        }
    }
    entries_.push_back({op, chosen, passed_over, 1, cost});
}

}  // namespace moebius
