// Kernels of mixers with a state: convolution taps, steps of the delta rule and of selective scans,
// sigmoid gates. On the f32 vectors of the table that includes this.
#pragma once

#include <cstdint>

#include "base/exp.h"
#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// out[c] = sum over j, in order, of weights[j * n + c] * inputs[j][c].
void ConvolveRow(const float* const* inputs, const float* weights, std::int64_t num_taps,
                 std::int64_t n, float* out) {
  std::int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    VecF sum = Mul(Load(weights + c), Load(inputs[0] + c));
    for (std::int64_t j = 1; j < num_taps; ++j) {
      sum = Fma(Load(weights + j * n + c), Load(inputs[j] + c), sum);
    }
    Store(out + c, sum);
  }
  for (; c < n; ++c) {
    float sum = weights[c] * inputs[0][c];
    for (std::int64_t j = 1; j < num_taps; ++j) sum += weights[j * n + c] * inputs[j][c];
    out[c] = sum;
  }
}

void GateRow(const float* g, std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= 1.0F / (1.0F + FastExp(-g[i]));
}

/// Stores a part of a state, past the caches if it is read late: that halves the bytes of a write,
/// since a line that is stored whole is not read before.
template <bool kIsReadLate>
inline void StoreState(float* p, VecF v) {
  if constexpr (kIsReadLate) {
    StorePastCache(p, v);
  } else {
    Store(p, v);
  }
}

/// True if a step may store past the caches: rows are whole, aligned vectors.
template <class Step>
inline bool StoresPastCache(const Step& step, std::int64_t row_size) {
  constexpr std::uintptr_t kBytes = sizeof(VecF);
  return step.is_read_late && row_size % kLanes == 0 &&
         reinterpret_cast<std::uintptr_t>(step.after) % kBytes == 0;
}

/// Rows [first, first + kRows) of a head. All have their first pass before any has its second, so
/// that none waits for its sum; a row's sums do not depend on the others.
template <int kRows, bool kIsReadLate>
inline void StepDeltaRows(const DeltaStep& step, std::int64_t first) {
  const std::int64_t n = step.key_dim;
  const float* before = step.before + first * n;
  float* after = step.after + first * n;
  VecF sums[kRows];
  for (VecF& sum : sums) sum = Zero();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF k = Load(step.k + i);
    for (int r = 0; r < kRows; ++r) sums[r] = Fma(Load(before + r * n + i), k, sums[r]);
  }
  float deltas[kRows], tails[kRows];
  for (int r = 0; r < kRows; ++r) {
    float sum = Sum(sums[r]);
    for (std::int64_t t = i; t < n; ++t) sum += before[r * n + t] * step.k[t];
    deltas[r] = step.beta * (step.v[first + r] - step.decay * sum);
    tails[r] = 0.0F;
    for (std::int64_t t = i; t < n; ++t) {
      const float updated = step.decay * before[r * n + t] + deltas[r] * step.k[t];
      after[r * n + t] = updated;
      tails[r] += updated * step.q[t];
    }
    sums[r] = Zero();
  }
  const VecF decay = Broadcast(step.decay);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const VecF k = Load(step.k + i), q = Load(step.q + i);
    for (int r = 0; r < kRows; ++r) {
      const VecF decayed = Mul(decay, Load(before + r * n + i));
      const VecF updated = Fma(Broadcast(deltas[r]), k, decayed);
      StoreState<kIsReadLate>(after + r * n + i, updated);
      sums[r] = Fma(updated, q, sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) step.out[first + r] = Sum(sums[r]) + tails[r];
}

template <bool kIsReadLate>
inline void StepDeltaHead(const DeltaStep& step) {
  constexpr int kRows = 4;  // with AVX2 their sums and factors leave registers for the operands
  std::int64_t row = 0;
  for (; row + kRows <= step.value_dim; row += kRows) StepDeltaRows<kRows, kIsReadLate>(step, row);
  for (; row < step.value_dim; ++row) StepDeltaRows<1, kIsReadLate>(step, row);
}

void StepDelta(const DeltaStep& step) {
  if (!StoresPastCache(step, step.key_dim)) return StepDeltaHead<false>(step);
  StepDeltaHead<true>(step);
  FinishStores();
}

/// Rows [first, first + kRows) of a head, in one pass; a row's sum does not depend on the others.
template <int kRows, bool kIsReadLate>
inline void StepScanRows(const ScanStep& step, std::int64_t first) {
  const std::int64_t n = step.state_dim;
  const float* before = step.before + first * n;
  float* after = step.after + first * n;
  VecF sums[kRows], factors[kRows];
  for (int r = 0; r < kRows; ++r) {
    sums[r] = Zero();
    factors[r] = Broadcast(step.step * step.x[first + r]);
  }
  const VecF decay = Broadcast(step.decay);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF b = Load(step.b + i), c = Load(step.c + i);
    for (int r = 0; r < kRows; ++r) {
      const VecF updated = Fma(factors[r], b, Mul(decay, Load(before + r * n + i)));
      StoreState<kIsReadLate>(after + r * n + i, updated);
      sums[r] = Fma(updated, c, sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const float x = step.x[first + r];
    float sum = Sum(sums[r]);
    for (std::int64_t t = i; t < n; ++t) {
      const float updated = step.decay * before[r * n + t] + step.step * x * step.b[t];
      after[r * n + t] = updated;
      sum += updated * step.c[t];
    }
    step.out[first + r] = sum + step.skip * x;
  }
}

template <bool kIsReadLate>
inline void StepScanHead(const ScanStep& step) {
  constexpr int kRows = 4;  // as StepDeltaHead
  std::int64_t row = 0;
  for (; row + kRows <= step.head_dim; row += kRows) StepScanRows<kRows, kIsReadLate>(step, row);
  for (; row < step.head_dim; ++row) StepScanRows<1, kIsReadLate>(step, row);
}

void StepScan(const ScanStep& step) {
  if (!StoresPastCache(step, step.state_dim)) return StepScanHead<false>(step);
  StepScanHead<true>(step);
  FinishStores();
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
