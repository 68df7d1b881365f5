// Vectors of GEMM_LANES f32 by the compiler's vector type, and transpositions with them. For
// kernels/isa/*/gemm.cpp: include once per file; everything has internal linkage (isa_tables.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace powerinfer {
namespace {

constexpr std::int64_t kLanes = GEMM_LANES;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

#define GEMM_INLINE [[gnu::always_inline]] inline

GEMM_INLINE Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
GEMM_INLINE void Store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }

// A square of kLanes vectors is transposed by swapping its off-diagonal blocks of kStep lanes, for
// kStep = kLanes / 2 down to 1.
template <std::int64_t kStep, std::size_t... kLane>
GEMM_INLINE Vec TakeLow(const Vec& a, const Vec& b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(
      a, b, ((kLane & kStep) != 0 ? kLanes + std::int64_t{kLane} - kStep : std::int64_t{kLane})...);
}

template <std::int64_t kStep, std::size_t... kLane>
GEMM_INLINE Vec TakeHigh(const Vec& a, const Vec& b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(
      a, b, ((kLane & kStep) != 0 ? kLanes + std::int64_t{kLane} : std::int64_t{kLane} + kStep)...);
}

template <std::int64_t kStep>
GEMM_INLINE void TransposeStep(Vec* square) {
  constexpr auto kSequence = std::make_index_sequence<kLanes>{};
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kLanes; ++i) {
    if ((i & kStep) != 0) continue;
    const Vec a = square[i];
    const Vec b = square[i + kStep];
    square[i] = TakeLow<kStep>(a, b, kSequence);
    square[i + kStep] = TakeHigh<kStep>(a, b, kSequence);
  }
  if constexpr (kStep > 1) TransposeStep<kStep / 2>(square);
}

/// out[j * out_stride + i] = in[i * in_stride + j] + bias[i] for a whole square.
GEMM_INLINE void TransposeSquare(const float* in, std::int64_t in_stride, const float* bias,
                                 float* out, std::int64_t out_stride) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kLanes; ++i) square[i] = Load(in + i * in_stride);
  TransposeStep<kLanes / 2>(square);
  if (bias != nullptr) {
    const Vec b = Load(bias);
#pragma GCC unroll 16
    for (std::int64_t j = 0; j < kLanes; ++j) square[j] += b;
  }
#pragma GCC unroll 16
  for (std::int64_t j = 0; j < kLanes; ++j) Store(out + j * out_stride, square[j]);
}

void TransposeElements(const float* in, std::int64_t in_stride, std::int64_t rows,
                       std::int64_t columns, const float* bias, float* out,
                       std::int64_t out_stride) {
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) {
      // Without a bias nothing is added, as in a square: -0 stays -0.
      const float value = in[i * in_stride + j];
      out[j * out_stride + i] = bias != nullptr ? value + bias[i] : value;
    }
  }
}

void Transpose(const float* in, std::int64_t in_stride, std::int64_t rows, std::int64_t columns,
               const float* bias, float* out, std::int64_t out_stride) {
  const std::int64_t whole_rows = rows / kLanes * kLanes;
  const std::int64_t whole_columns = columns / kLanes * kLanes;
  for (std::int64_t j = 0; j < whole_columns; j += kLanes) {
    for (std::int64_t i = 0; i < whole_rows; i += kLanes) {
      TransposeSquare(in + i * in_stride + j, in_stride, bias != nullptr ? bias + i : nullptr,
                      out + j * out_stride + i, out_stride);
    }
  }
  TransposeElements(in + whole_rows * in_stride, in_stride, rows - whole_rows, whole_columns,
                    bias != nullptr ? bias + whole_rows : nullptr, out + whole_rows, out_stride);
  TransposeElements(in + whole_columns, in_stride, rows, columns - whole_columns, bias,
                    out + whole_columns * out_stride, out_stride);
}

}  // namespace
}  // namespace powerinfer
