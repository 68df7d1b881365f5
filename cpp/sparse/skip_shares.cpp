// Shares of neurons up to which a token of a prompt gains by skipping the others, from the costs of
// listed pairs and of whole matrices.
#include <algorithm>

#include "sparse/prefill.h"

namespace powerinfer {
namespace {

// Skipping must promise to take less than this of the dense products: lists and copies cost, too.
constexpr double kWorthwhileCost = 0.85;

const ListedCost& CostOf(const KernelTable& kernels, Format format) {
  const GemmKernel& gemm = kernels.GemmFor(format);
  return InfoOf(format).block_size > 1 ? gemm.listed_block : gemm.listed_float;
}

}  // namespace

SkipShares SharesFor(const KernelTable& kernels, const FFNView& ffn) {
  const ListedCost& up = CostOf(kernels, ffn.up.format);
  const ListedCost& down = CostOf(kernels, ffn.down.format);
  double listed = 0.0;  // if all neurons fired
  double dense = 0.0;
  if (ffn.HasGate()) {
    listed += up.dot;
    dense += 1.0;
  }
  if (ffn.is_down_transposed) {
    // up, too, decides: about half of it fires, whatever its gate.
    const bool halves = ffn.HasGate() && ffn.activation.kind == ActivationKind::kDRelu;
    listed += halves ? down.add / 2.0 : down.add;
    dense += down.turned;
  }
  SkipShares shares;
  if (listed > 0.0) shares.firing = std::min(1.0, kWorthwhileCost * dense / listed);
  const double deciding = CostOf(kernels, ffn.DecidingMatrix().format).dot;
  shares.listed = kWorthwhileCost / deciding;
  // A token that decides on listed pairs goes on with pairs.
  if (listed > 0.0) shares.listed = std::min(shares.listed, shares.firing);
  return shares;
}

}  // namespace powerinfer
