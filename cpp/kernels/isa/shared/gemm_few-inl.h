// The f32 product of gemm.h for few tokens; included by gemm_f32-inl.h.
//
// Squares of weights are transposed in registers, so that a vector holds one k of several rows.
// Every sum is the chain of additions that gemm_f32-inl.h makes: the same bits.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/isa/shared/gemm_transpose-inl.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kBlockDepth = 256;

template <std::int64_t kTokens>
GEMM_INLINE void AddOne(Vec weights, const float* x, std::int64_t x_stride, Vec* sums) {
#pragma GCC unroll 8
  for (std::int64_t t = 0; t < kTokens; ++t) {
    sums[t] = GEMM_MULTIPLY_ADD(x[t * x_stride] - Vec{}, weights, sums[t]);
  }
}

template <std::int64_t kTokens>
void MultiplyFewTokens(const float* rows, const float* x, std::int64_t x_stride, std::int64_t depth,
                       bool accumulate, float* out, std::int64_t out_stride) {
  Vec sums[kTokens];
#pragma GCC unroll 8
  for (std::int64_t t = 0; t < kTokens; ++t) {
    sums[t] = accumulate ? Load(out + t * out_stride) : Vec{};
  }
  std::int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vec square[kLanes];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kLanes; ++i) square[i] = Load(rows + i * kBlockDepth + k);
    TransposeStep<kLanes / 2>(square);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kLanes; ++i) {
      AddOne<kTokens>(square[i], x + k + i, x_stride, sums);
    }
  }
  for (; k < depth; ++k) {
    Vec weights;
    for (std::int64_t i = 0; i < kLanes; ++i) weights[i] = rows[i * kBlockDepth + k];
    AddOne<kTokens>(weights, x + k, x_stride, sums);
  }
#pragma GCC unroll 8
  for (std::int64_t t = 0; t < kTokens; ++t) Store(out + t * out_stride, sums[t]);
}

void MultiplyFew(const float* rows, const float* x, std::int64_t x_stride, std::int64_t depth,
                 std::int64_t num_tokens, bool accumulate, float* out, std::int64_t out_stride) {
  using Function =
      void (*)(const float*, const float*, std::int64_t, std::int64_t, bool, float*, std::int64_t);
  static constexpr Function kFunctions[kMaxFewTokens] = {
      MultiplyFewTokens<1>, MultiplyFewTokens<2>, MultiplyFewTokens<3>, MultiplyFewTokens<4>,
      MultiplyFewTokens<5>, MultiplyFewTokens<6>, MultiplyFewTokens<7>, MultiplyFewTokens<8>};
  kFunctions[num_tokens - 1](rows, x, x_stride, depth, accumulate, out, out_stride);
}

}  // namespace
}  // namespace powerinfer
