// The blocked product of gemm.h for BF16 weights: they are exact in bfloat16, activations are
// rounded to it, and pairs of depths are summed in f32 by vdpbf16ps. Up to twice the speed of f32.
//
//   rows:  [row][block_depth]
//   panel: [depth pair][column group of 16][16 columns][2 depths]
#define GEMM_LANES 16
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own intrinsics start from "undefined" vectors, which it then reports.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/gemm.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/isa/shared/bf16-inl.h"
#include "kernels/isa/shared/gemm_transpose-inl.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kTileRows = 12;
constexpr std::int64_t kGroups = 2;  // column groups of a panel
constexpr std::int64_t kPanelWidth = 16 * kGroups;
constexpr std::int64_t kBlockDepth = 512;
constexpr std::int64_t kPairNumbers = 2 * kPanelWidth;  // of one depth pair in a panel

void Bf16PackRows(const float* rows, std::int64_t stride, std::int64_t num_rows, std::int64_t depth,
                  GemmPrecision, void* packed) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const float* row = rows + r * stride;
    auto* out = static_cast<std::uint16_t*>(packed) + r * kBlockDepth;
    for (std::int64_t k = 0; k < depth; k += 32) {
      _mm512_storeu_si512(
          out + k, HighPart(LoadUpTo(row + k, depth - k), LoadUpTo(row + k + 16, depth - k - 16)));
    }
  }
}

void Bf16PackPanel(const float* b, std::int64_t stride, std::int64_t depth,
                   std::int64_t num_columns, GemmPrecision, void* panel) {
  auto* out = static_cast<std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < depth; k += 2) {
    const float* row = b + k * stride;
    for (std::int64_t group = 0; group < kGroups; ++group, out += 32) {
      const std::int64_t columns = num_columns - 16 * group;
      const __m512 even = LoadUpTo(row + 16 * group, columns);
      const __m512 odd =
          k + 1 < depth ? LoadUpTo(row + stride + 16 * group, columns) : _mm512_setzero_ps();
      _mm512_storeu_si512(out, InterleaveDepths(even, odd));
    }
  }
}

/// Packs 16 columns, each given by rows of up to 32 depths: a transposition of depth pairs.
void PackSquare(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t num_columns,
                std::uint16_t* out) {
  Vec square[16];
  for (std::int64_t j = 0; j < 16; ++j) {
    const bool is_inside = j < num_columns;
    const float* column = b + (is_inside ? j * stride : 0);
    square[j] = reinterpret_cast<Vec>(HighPart(LoadUpTo(column, is_inside ? depth : 0),
                                               LoadUpTo(column + 16, is_inside ? depth - 16 : 0)));
  }
  TransposeStep<8>(square);
  for (std::int64_t pair = 0; 2 * pair < depth && pair < 16; ++pair) {
    _mm512_storeu_si512(out + pair * kPairNumbers, reinterpret_cast<__m512i>(square[pair]));
  }
}

void Bf16PackPanelTransposed(const float* b, std::int64_t stride, std::int64_t depth,
                             std::int64_t num_columns, GemmPrecision, void* panel) {
  auto* out = static_cast<std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < depth; k += 32, out += 16 * kPairNumbers) {
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const std::int64_t columns = num_columns - 16 * group;
      PackSquare(b + (columns > 0 ? 16 * group * stride : 0) + k, stride, depth - k, columns,
                 out + 32 * group);
    }
  }
}

template <std::int64_t kUsed>
GEMM_INLINE void MultiplyTile(const std::uint16_t* a, const std::uint16_t* panel,
                              std::int64_t depth, bool accumulate, float* c,
                              std::int64_t c_stride) {
  __m512 sums[kTileRows][kUsed];
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) {
      sums[r][v] = accumulate ? _mm512_loadu_ps(c + r * c_stride + v * 16) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < depth; k += 2, panel += kPairNumbers) {
    __m512i b[kUsed];
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) b[v] = _mm512_loadu_si512(panel + 32 * v);
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, a + r * kBlockDepth + k, sizeof pair);
      const __m512i row = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (std::int64_t v = 0; v < kUsed; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], reinterpret_cast<__m512bh>(row),
                                      reinterpret_cast<__m512bh>(b[v]));
      }
    }
  }
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) {
      _mm512_storeu_ps(c + r * c_stride + v * 16, sums[r][v]);
    }
  }
}

void Bf16Multiply(const void* rows, std::int64_t num_rows, const void* panel, std::int64_t depth,
                  std::int64_t num_columns, GemmPrecision, bool accumulate, float* c,
                  std::int64_t c_stride) {
  const auto* a = static_cast<const std::uint16_t*>(rows);
  const auto* b = static_cast<const std::uint16_t*>(panel);
  for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
    if (num_columns <= 16) {
      MultiplyTile<1>(a + row * kBlockDepth, b, depth, accumulate, c + row * c_stride, c_stride);
    } else {
      MultiplyTile<kGroups>(a + row * kBlockDepth, b, depth, accumulate, c + row * c_stride,
                            c_stride);
    }
  }
}

}  // namespace

GemmKernel Avx512Bf16Gemm() {
  GemmKernel kernel;
  kernel.name = "avx512";
  kernel.panel_width = kPanelWidth;
  kernel.tile_rows = kTileRows;
  kernel.block_rows = 192;
  kernel.group_rows = kTileRows;
  kernel.block_depth = kBlockDepth;
  kernel.depth_multiple = kBlockDepth;
  kernel.listed_float = {.dot = 5.6, .add = 5.3, .turned = 1.15};
  kernel.single_bytes = 2;
  kernel.split_bytes = 2;
  kernel.pack_rows = Bf16PackRows;
  kernel.pack_panel = Bf16PackPanel;
  kernel.pack_panel_transposed = Bf16PackPanelTransposed;
  kernel.multiply = Bf16Multiply;
  kernel.transpose = Transpose;
  return kernel;
}

}  // namespace powerinfer
