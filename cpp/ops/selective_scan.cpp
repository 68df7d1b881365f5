#include "ops/selective_scan.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/exp.h"
#include "base/row_chunks.h"
#include "ops/norm.h"

namespace powerinfer {
namespace {

/// One head of one sequence. `convolved` rows hold x, b and c.
class ScannedHead {
 public:
  ScannedHead(const KernelTable& kernels, const SelectiveScanCall& call,
              RowsView<const float> convolved, std::int64_t head, float* result)
      : kernels_(kernels),
        call_(call),
        scan_(call.scan),
        convolved_(convolved),
        head_(head),
        result_(result) {}

  void Run(const StateSpan& span) const {
    const std::int64_t size = scan_.head_dim * scan_.state_dim;
    const std::int64_t place = scan_.NumColumns() + head_ * size;
    float* after = span.after + place;
    if (span.before == nullptr) std::fill_n(after, size, 0.0F);
    const float* before = span.before == nullptr ? after : span.before + place;
    const bool is_read_late = span.IsReadLate(scan_.num_heads * size);
    for (std::int64_t t = span.first_token; t < span.first_token + span.num_tokens; ++t) {
      Step(t, before, after, is_read_late);
      before = after;
    }
  }

 private:
  void Step(std::int64_t t, const float* before, float* after, bool is_read_late) const {
    const float* row = convolved_.Row(t);
    const std::int64_t group = head_ / (scan_.num_heads / scan_.num_groups);
    const float* b = row + scan_.NumInner() + group * scan_.state_dim;
    const float* c = b + scan_.num_groups * scan_.state_dim;
    const std::int64_t place = head_ * scan_.head_dim;
    const float* input = call_.input.Row(t);
    const float dt = input[scan_.NumInner() + scan_.NumChannels() + head_];
    const float step = Softplus(dt + scan_.dt_bias[head_]);
    kernels_.step_scan({before, after, scan_.state_dim, scan_.head_dim, row + place, b, c,
                        FastExp(scan_.a[head_] * step), step, scan_.skip[head_], result_,
                        is_read_late});
    float* out = call_.out.Row(t) + place;
    std::copy_n(input + place, scan_.head_dim, out);
    kernels_.gemm.silu(scan_.head_dim, out, result_);
  }

  const KernelTable& kernels_;
  const SelectiveScanCall& call_;
  const SelectiveScanView& scan_;
  RowsView<const float> convolved_;
  std::int64_t head_;
  float* result_;  // f32[head_dim]
};

/// silu(conv(x, b and c) + bias).
void ConvolveInput(const OpContext& context, const SelectiveScanCall& call,
                   const std::vector<StateSpan>& spans, RowsView<float> out) {
  const SelectiveScanView& scan = call.scan;
  const RowsView<const float> input = {call.input.data + scan.NumInner(), call.input.rows,
                                       scan.NumChannels(), call.input.stride};
  const auto finish = [&](std::int64_t token, std::int64_t first, std::int64_t count) {
    float* row = out.Row(token) + first;
    if (scan.conv_bias != nullptr) {
      for (std::int64_t i = 0; i < count; ++i) row[i] += scan.conv_bias[first + i];
    }
    context.kernels.gemm.silu(count, row, nullptr);
  };
  Convolve(
      context, spans, {scan.conv, scan.num_taps, input, out},
      [](std::int64_t, std::int64_t, std::int64_t) {}, finish);
}

/// The norm of each group of heads.
void NormGroups(const OpContext& context, const SelectiveScanView& scan, RowsView<float> out) {
  const std::int64_t size = scan.NumInner() / scan.num_groups;
  ForEachRow(context.team, out.rows * scan.num_groups, size, [&](std::int64_t unit) {
    const std::int64_t place = unit % scan.num_groups * size;
    float* row = out.Row(unit / scan.num_groups) + place;
    RmsNormRow(row, size, scan.norm + place, scan.eps, row);
  });
}

}  // namespace

void SelectiveScan(const OpContext& context, const SelectiveScanCall& call) {
  const SelectiveScanView& scan = call.scan;
  const std::vector<StateSpan> spans = StateSpans(call.batch, *call.state);
  const std::int64_t channels = scan.NumChannels();
  const RowsView<float> convolved =
      Rows(context.workspace.Get<float>(Scratch::kConvolution, call.input.rows * channels),
           call.input.rows, channels);
  ConvolveInput(context, call, spans, convolved);
  float* scratch =
      context.workspace.Get<float>(Scratch::kStateHeads, context.team.NumThreads() * scan.head_dim);
  const auto num_units = static_cast<std::int64_t>(spans.size()) * scan.num_heads;
  context.team.ParallelFor(num_units, [&](std::int64_t unit, std::int32_t thread) {
    ScannedHead(context.kernels, call, ReadOnly(convolved), unit % scan.num_heads,
                scratch + thread * scan.head_dim)
        .Run(spans[static_cast<std::size_t>(unit / scan.num_heads)]);
  });
  NormGroups(context, scan, call.out);
}

}  // namespace powerinfer
