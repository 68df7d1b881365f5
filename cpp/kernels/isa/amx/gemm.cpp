// The blocked product of gemm.h on AMX tiles of bfloat16 with f32 sums.
//
// A number x is kept as high = bf16(x) and, for GemmPrecision::kSplit, low = bf16(x - high);
// the product then is high*high + high*low + low*high. All operands are stored tile by tile (1
// KiB):
//   rows:  [row group of 16][depth step of 32][part][16 rows][32 depths]
//   panel: [depth step of 32][part][column group of 16][16 depth pairs][16 columns][2 depths]
#define GEMM_LANES 16
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own intrinsics start from "undefined" vectors, which it then reports.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/gemm.h"

#include <immintrin.h>

#include "kernels/isa/shared/activation-inl.h"
#include "kernels/isa/shared/bf16-inl.h"
#include "kernels/isa/shared/gemm_transpose-inl.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kTileDepth = 32;
constexpr std::int64_t kTileNumbers = 512;  // bfloat16 numbers in a tile
constexpr std::int64_t kAmxBlockDepth = 512;

std::int64_t Parts(GemmPrecision precision) { return precision == GemmPrecision::kSplit ? 2 : 1; }
std::int64_t Steps(std::int64_t depth) { return (depth + kTileDepth - 1) / kTileDepth; }

/// x - bf16(x), and 0 if that is not finite, so that infinities stay alone in the high part.
__m512 Remainder(__m512 x) {
  const __m256i high = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
  const __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  const __m512 remainder = _mm512_sub_ps(x, rounded);
  const __mmask16 is_special = _mm512_fpclass_ps_mask(remainder, 0x01 | 0x80 | 0x08 | 0x10);
  return _mm512_mask_mov_ps(remainder, is_special, _mm512_setzero_ps());
}

void PackRows(const float* rows, std::int64_t stride, std::int64_t num_rows, std::int64_t depth,
              GemmPrecision precision, void* packed) {
  const std::int64_t parts = Parts(precision);
  auto* out = static_cast<std::uint16_t*>(packed);
  for (std::int64_t group = 0; group < num_rows; group += 16) {
    for (std::int64_t r = 0; r < 16; ++r) {
      const float* row = rows + (group + r) * stride;
      std::uint16_t* tile = out + r * kTileDepth;
      for (std::int64_t k = 0; k < depth; k += kTileDepth, tile += parts * kTileNumbers) {
        const __m512 a = LoadUpTo(row + k, depth - k);
        const __m512 b = LoadUpTo(row + k + 16, depth - k - 16);
        _mm512_storeu_si512(tile, HighPart(a, b));
        if (parts == 2) {
          _mm512_storeu_si512(tile + kTileNumbers, HighPart(Remainder(a), Remainder(b)));
        }
      }
    }
    out += Steps(depth) * parts * kTileNumbers;
  }
}

void AmxPackPanel(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t num_columns,
                  GemmPrecision precision, void* panel) {
  const std::int64_t parts = Parts(precision);
  auto* tile = static_cast<std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < depth; k += kTileDepth, tile += 2 * parts * kTileNumbers) {
    for (std::int64_t pair = 0; pair < 16; ++pair) {
      const std::int64_t depth_left = depth - k - 2 * pair;
      const float* row = b + (k + 2 * pair) * stride;
      for (std::int64_t group = 0; group < 2; ++group) {
        const std::int64_t columns = num_columns - 16 * group;
        const __m512 even =
            depth_left > 0 ? LoadUpTo(row + 16 * group, columns) : _mm512_setzero_ps();
        const __m512 odd =
            depth_left > 1 ? LoadUpTo(row + stride + 16 * group, columns) : _mm512_setzero_ps();
        std::uint16_t* out = tile + group * kTileNumbers + pair * 32;
        _mm512_storeu_si512(out, InterleaveDepths(even, odd));
        if (parts == 2) {
          _mm512_storeu_si512(out + 2 * kTileNumbers,
                              InterleaveDepths(Remainder(even), Remainder(odd)));
        }
      }
    }
  }
}

/// Writes one tile from 16 columns given as rows of 32 depths: a transposition of depth pairs.
void StoreTransposed(__m512i* columns, std::uint16_t* tile) {
  Vec square[16];
  for (std::int64_t j = 0; j < 16; ++j) square[j] = reinterpret_cast<Vec>(columns[j]);
  TransposeStep<8>(square);
  for (std::int64_t pair = 0; pair < 16; ++pair) {
    _mm512_storeu_si512(tile + pair * 32, reinterpret_cast<__m512i>(square[pair]));
  }
}

void AmxPackPanelTransposed(const float* b, std::int64_t stride, std::int64_t depth,
                            std::int64_t num_columns, GemmPrecision precision, void* panel) {
  const std::int64_t parts = Parts(precision);
  auto* tile = static_cast<std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < depth; k += kTileDepth, tile += 2 * parts * kTileNumbers) {
    for (std::int64_t group = 0; group < 2; ++group) {
      __m512i high[16];
      __m512i low[16];
      for (std::int64_t j = 0; j < 16; ++j) {
        const std::int64_t column = 16 * group + j;
        const bool is_inside = column < num_columns;
        const float* source = b + (is_inside ? column * stride + k : 0);
        const __m512 first = LoadUpTo(source, is_inside ? depth - k : 0);
        const __m512 second = LoadUpTo(source + 16, is_inside ? depth - k - 16 : 0);
        high[j] = HighPart(first, second);
        if (parts == 2) low[j] = HighPart(Remainder(first), Remainder(second));
      }
      StoreTransposed(high, tile + group * kTileNumbers);
      if (parts == 2) StoreTransposed(low, tile + (2 + group) * kTileNumbers);
    }
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Tiles 0-3 hold sums (row group * 2 + column group), 4-5 rows, 6-7 columns of the panel.
template <bool kTwoRows, bool kTwoColumns>
GEMM_INLINE void LoadSums(const float* c, std::size_t stride, std::int64_t c_stride) {
  _tile_loadd(0, c, stride);
  if constexpr (kTwoColumns) _tile_loadd(1, c + 16, stride);
  if constexpr (kTwoRows) _tile_loadd(2, c + 16 * c_stride, stride);
  if constexpr (kTwoRows && kTwoColumns) _tile_loadd(3, c + 16 * c_stride + 16, stride);
}

template <bool kTwoRows, bool kTwoColumns>
GEMM_INLINE void StoreSums(float* c, std::size_t stride, std::int64_t c_stride) {
  _tile_stored(0, c, stride);
  if constexpr (kTwoColumns) _tile_stored(1, c + 16, stride);
  if constexpr (kTwoRows) _tile_stored(2, c + 16 * c_stride, stride);
  if constexpr (kTwoRows && kTwoColumns) _tile_stored(3, c + 16 * c_stride + 16, stride);
}

template <bool kTwoRows>
GEMM_INLINE void LoadRowTiles(const std::uint16_t* rows, std::int64_t group_stride) {
  _tile_loadd(4, rows, 64);
  if constexpr (kTwoRows) _tile_loadd(5, rows + group_stride, 64);
}

template <bool kTwoColumns>
GEMM_INLINE void LoadColumnTiles(const std::uint16_t* panel) {
  _tile_loadd(6, panel, 64);
  if constexpr (kTwoColumns) _tile_loadd(7, panel + kTileNumbers, 64);
}

template <bool kTwoRows, bool kTwoColumns>
GEMM_INLINE void MultiplyLoaded() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kTwoColumns) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwoRows) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kTwoRows && kTwoColumns) _tile_dpbf16ps(3, 5, 7);
}

template <bool kTwoRows, bool kTwoColumns>
void MultiplyGroups(const std::uint16_t* rows, const std::uint16_t* panel, std::int64_t steps,
                    std::int64_t parts, bool accumulate, float* c, std::int64_t c_stride) {
  const std::size_t stride = static_cast<std::size_t>(c_stride) * sizeof(float);
  const std::int64_t group_stride = steps * parts * kTileNumbers;
  if (accumulate) {
    LoadSums<kTwoRows, kTwoColumns>(c, stride, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    LoadRowTiles<kTwoRows>(rows, group_stride);
    LoadColumnTiles<kTwoColumns>(panel);
    MultiplyLoaded<kTwoRows, kTwoColumns>();
    if (parts == 2) {
      LoadColumnTiles<kTwoColumns>(panel + 2 * kTileNumbers);
      MultiplyLoaded<kTwoRows, kTwoColumns>();
      LoadRowTiles<kTwoRows>(rows + kTileNumbers, group_stride);
      LoadColumnTiles<kTwoColumns>(panel);
      MultiplyLoaded<kTwoRows, kTwoColumns>();
    }
    rows += parts * kTileNumbers;
    panel += 2 * parts * kTileNumbers;
  }
  StoreSums<kTwoRows, kTwoColumns>(c, stride, c_stride);
}

void AmxMultiply(const void* rows, std::int64_t num_rows, const void* panel, std::int64_t depth,
                 std::int64_t num_columns, GemmPrecision precision, bool accumulate, float* c,
                 std::int64_t c_stride) {
  TileConfig config;
  for (std::size_t tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  _tile_loadconfig(&config);
  const std::int64_t parts = Parts(precision);
  const std::int64_t steps = Steps(depth);
  const auto* a = static_cast<const std::uint16_t*>(rows);
  const auto* b = static_cast<const std::uint16_t*>(panel);
  for (std::int64_t row = 0; row < num_rows;) {
    const bool has_two = row + 32 <= num_rows;
    auto* multiply = num_columns > 16
                         ? (has_two ? MultiplyGroups<true, true> : MultiplyGroups<false, true>)
                         : (has_two ? MultiplyGroups<true, false> : MultiplyGroups<false, false>);
    multiply(a + row / 16 * steps * parts * kTileNumbers, b, steps, parts, accumulate,
             c + row * c_stride, c_stride);
    row += has_two ? 32 : 16;
  }
  _tile_release();
}

}  // namespace

GemmKernel AmxGemm() {
  GemmKernel kernel;
  kernel.name = "amx";
  kernel.panel_width = 32;
  kernel.tile_rows = 16;
  kernel.block_rows = 256;
  kernel.block_depth = kAmxBlockDepth;
  kernel.depth_multiple = kTileDepth;
  kernel.beats_int8 = true;
  kernel.listed_float = {.dot = 7.0, .add = 7.0};
  kernel.listed_block = {.dot = 6.0, .add = 15.0};
  kernel.single_bytes = 2;
  kernel.pack_rows = PackRows;
  kernel.pack_panel = AmxPackPanel;
  kernel.pack_panel_transposed = AmxPackPanelTransposed;
  kernel.multiply = AmxMultiply;
  kernel.transpose = Transpose;
  kernel.silu = Silu;
  kernel.gelu = Gelu;
  return kernel;
}

}  // namespace powerinfer
