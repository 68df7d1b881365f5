// Scores to softmax weights: exp(scale * score - maximum), not yet divided by their sum; soft caps
// of scores before that.
//
// Sixteen running maxima and sums in a fixed order, so compilers vectorize for any instruction set
// without changing the bits that this one gives.
#pragma once

#include <cstdint>
#include <limits>

#include "base/exp.h"
#include "base/tanh.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kSoftmaxLanes = 16;

/// Scales scores f32[n] in place and returns the largest; NaN is passed over (its weight stays
/// NaN).
inline float ScaleAndFindMaximum(float* scores, std::int64_t n, float scale) {
  float lanes[kSoftmaxLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    for (std::int64_t j = 0; j < kSoftmaxLanes; ++j) {
      const float score = scores[i + j] * scale;
      scores[i + j] = score;
      lanes[j] = score > lanes[j] ? score : lanes[j];
    }
  }
  float maximum = lanes[0];
  for (; i < n; ++i) {
    scores[i] *= scale;
    maximum = scores[i] > maximum ? scores[i] : maximum;
  }
  for (const float lane : lanes) maximum = lane > maximum ? lane : maximum;
  return maximum;
}

float SoftmaxWeights(float* scores, std::int64_t n, float scale, float* maximum) {
  const float largest = ScaleAndFindMaximum(scores, n, scale);
  *maximum = largest;
  float lanes[kSoftmaxLanes] = {};
  std::int64_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    for (std::int64_t j = 0; j < kSoftmaxLanes; ++j) {
      const float weight = FastExp(scores[i + j] - largest);
      scores[i + j] = weight;
      lanes[j] += weight;
    }
  }
  for (std::int64_t j = 0; i < n; ++i, ++j) {
    scores[i] = FastExp(scores[i] - largest);
    lanes[j] += scores[i];
  }
  for (std::int64_t width = kSoftmaxLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

void CapScores(float* scores, std::int64_t n, float scale, float cap) {
  const float factor = scale / cap;
  for (std::int64_t i = 0; i < n; ++i) scores[i] = cap * FastTanh(scores[i] * factor);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
