// Router, dispatcher, experts.
#pragma once

#include "moebius/nn/dispatcher.h"
#include "moebius/nn/sequential.h"
#include "moebius/ops/router/router.h"

namespace moebius::nn {

enum class ExpertMode { Loop, GroupedLinear, FusedGroupedMlp };

struct MoeOptions {
    GroupedMlpOptions experts;
    ops::RouterOptions router;
    ExpertMode mode = ExpertMode::GroupedLinear;
    bool selection_bias = false;  // a buffer `name`.router_bias (E) f32, added for selection only
    double bias_update_rate =
        0;  // aux-loss-free balancing: bias += rate · sign(mean load − load) at a step's end
    float input_jitter = 0;  // ε: in training, the block's input times uniform(1 − ε, 1 + ε)
    double router_init_std = 0.02;
};

class MoeBlock : public Module {
  public:
    // Declares `name`.router (E, H) and the experts' parameters `name`.gate_up, `name`.down. `layer`: its row
    // of run.router.
    MoeBlock(ParameterSet& parameters, const std::string& name, int64_t layer, const MoeOptions& options);

    Forward forward(Activation x, Run& run) override;  // (T, H) → (T, H)
    Activation backward(ContextPtr context, Activation dy, Run& run) override;

    // Memory for the buffers; they start at zero.
    void place_buffers(const Exec& exec);
    std::vector<StateEntry> buffers() const;
    // Balancing by selection bias, from the step's counts (E) f32 over all ranks; not after a bad step.
    void end_step(const View& counts, const Run& run);

    void low_precision(std::vector<LowPrecisionLinear*>& list) { experts_->low_precision(list); }

    const std::vector<FusionReportRow>* fusion_report() const;  // null in loop mode

  private:
    struct Saved;
    bool gathers(const Run& run) const;
    void jitter(const View& x, const View& out, Run& run) const;

    std::string name_;
    int64_t layer_;
    MoeOptions options_;
    Parameter* router_;
    Tensor bias_;
    std::unique_ptr<TokenDispatcher> dispatcher_;
    std::unique_ptr<Fusible> experts_;
};

}  // namespace moebius::nn
