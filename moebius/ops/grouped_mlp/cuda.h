#pragma once

#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::ops::cuda {

// The chain's ops one after the other, on any card.
void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec);
void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec);

// The last parts of backward: ddown from the activation (M, I), which may go then; dgate_up and dx from dC
// (M, 2I).
void gradient_of_down(const GroupedMlpBackwardArgs& args, const View& activation, const Exec& exec);
void gradients_from_dc(const GroupedMlpBackwardArgs& args, const View& dc, const Exec& exec);

// Memory for dC (M, 2I): C's own where that may be overwritten.
class GradientOfC {
  public:
    GradientOfC(const GroupedMlpBackwardArgs& args, const Exec& exec)
        : own_("grouped_mlp.dc", args.overwrite_c ? 0 : static_cast<size_t>(args.c.bytes()), exec),
          view_(args.overwrite_c ? args.c : View(own_.as<void>(), args.c.dtype, args.c.shape)) {}
    operator const View&() const { return view_; }

  private:
    Scratch own_;
    View view_;
};

}  // namespace moebius::ops::cuda
