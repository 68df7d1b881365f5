#include "ops/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/exp.h"
#include "ops/norm.h"

namespace powerinfer {
namespace {

constexpr float kUnitEps = 1e-6F;

float SigmoidOf(float x) { return 1.0F / (1.0F + FastExp(-x)); }

/// out = x / sqrt(sum of squares + 1e-6) * scale.
void Normalize(const KernelTable& kernels, const float* x, std::int64_t n, float scale,
               float* out) {
  const float factor = scale / std::sqrt(kernels.dot_f32(x, x, n) + kUnitEps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

/// One value head of one sequence. `convolved` rows hold q, k and v.
class HeadScan {
 public:
  HeadScan(const KernelTable& kernels, const DeltaRuleCall& call, RowsView<const float> convolved,
           std::int64_t head, float* scratch)
      : kernels_(kernels),
        call_(call),
        rule_(call.rule),
        convolved_(convolved),
        head_(head),
        q_(scratch),
        k_(q_ + rule_.key_dim),
        z_(k_ + rule_.key_dim) {}

  void Run(const StateSpan& span) const {
    const std::int64_t size = rule_.value_dim * rule_.key_dim;
    const std::int64_t place = rule_.NumColumns() + head_ * size;
    float* after = span.after + place;
    if (span.before == nullptr) std::fill_n(after, size, 0.0F);
    const float* before = span.before == nullptr ? after : span.before + place;
    const bool is_read_late = span.IsReadLate(rule_.num_value_heads * size);
    for (std::int64_t t = span.first_token; t < span.first_token + span.num_tokens; ++t) {
      Step(t, before, after, is_read_late);
      before = after;
    }
  }

 private:
  void Step(std::int64_t t, const float* before, float* after, bool is_read_late) const {
    const float* row = convolved_.Row(t);
    const float* q = row + head_ % rule_.num_key_heads * rule_.key_dim;
    Normalize(kernels_, q, rule_.key_dim, 1.0F / std::sqrt(static_cast<float>(rule_.key_dim)), q_);
    Normalize(kernels_, q + rule_.NumKeys(), rule_.key_dim, 1.0F, k_);
    const std::int64_t place = head_ * rule_.value_dim;
    float* out = call_.out.Row(t) + place;
    const float step = Softplus(call_.alpha.Row(t)[head_] + rule_.dt_bias[head_]);
    kernels_.step_delta({before, after, rule_.key_dim, rule_.value_dim, q_, k_,
                         row + 2 * rule_.NumKeys() + place, FastExp(rule_.a[head_] * step),
                         SigmoidOf(call_.beta.Row(t)[head_]), out, is_read_late});
    RmsNormRow(out, rule_.value_dim, rule_.norm, rule_.eps, out);
    std::copy_n(call_.gate.Row(t) + place, rule_.value_dim, z_);
    kernels_.gemm.silu(rule_.value_dim, z_, out);
    std::copy_n(z_, rule_.value_dim, out);
  }

  const KernelTable& kernels_;
  const DeltaRuleCall& call_;
  const DeltaRuleView& rule_;
  RowsView<const float> convolved_;
  std::int64_t head_;
  float* q_;  // f32[key_dim]
  float* k_;  // f32[key_dim]
  float* z_;  // f32[value_dim]
};

}  // namespace

void DeltaRule(const OpContext& context, const DeltaRuleCall& call) {
  const DeltaRuleView& rule = call.rule;
  const std::vector<StateSpan> spans = StateSpans(call.batch, *call.state);
  const std::int64_t channels = rule.NumChannels();
  const RowsView<float> convolved =
      Rows(context.workspace.Get<float>(Scratch::kConvolution, call.mixed.rows * channels),
           call.mixed.rows, channels);
  const auto silu = [&](std::int64_t token, std::int64_t first, std::int64_t count) {
    context.kernels.gemm.silu(count, convolved.Row(token) + first, nullptr);
  };
  Convolve(
      context, spans, {rule.conv, rule.num_taps, call.mixed, convolved},
      [](std::int64_t, std::int64_t, std::int64_t) {}, silu);
  const std::int64_t head_floats = 2 * rule.key_dim + rule.value_dim;
  float* scratch =
      context.workspace.Get<float>(Scratch::kStateHeads, context.team.NumThreads() * head_floats);
  const auto num_units = static_cast<std::int64_t>(spans.size()) * rule.num_value_heads;
  context.team.ParallelFor(num_units, [&](std::int64_t unit, std::int32_t thread) {
    HeadScan(context.kernels, call, ReadOnly(convolved), unit % rule.num_value_heads,
             scratch + thread * head_floats)
        .Run(spans[static_cast<std::size_t>(unit / rule.num_value_heads)]);
  });
}

}  // namespace powerinfer
