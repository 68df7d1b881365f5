// Blocked matrix products for many tokens: the register-tiled kernel of each instruction set.
//
// All kernels compute C[m, n] (+)= A[m, k] * B[k, n] on one depth block. A stays row by row, so
// dequantized weight rows need no reordering; B is packed once into panels of `panel_width`
// columns.
#pragma once

#include <cstdint>
#include <string_view>

namespace powerinfer {

/// Number of bfloat16 parts into which a kernel on bfloat16 hardware splits each number. Ignored by
/// kernels that compute in f32 or have only one part.
enum class GemmPrecision : std::int32_t {
  kSingle,  ///< high parts only: relative error of a factor up to 2^-8
  kSplit,   ///< high and low parts of both factors: close to f32
};

/// Time for one number of one row and one token, in units of the dense product of prompt rows.
/// Measured at 4096 columns, 11008 rows and 128 to 512 tokens with bench_prefill. Decides with how
/// many neurons a token is computed pair by pair.
struct ListedCost {
  double dot = 2.7;     ///< a listed pair of a product
  double add = 2.8;     ///< a listed pair of a transposed down
  double turned = 1.0;  ///< a transposed down of all pairs
};

/// Maximum number of tokens of GemmKernel::multiply_few: as many sums fit in registers.
inline constexpr std::int64_t kMaxFewTokens = 8;

/// One instruction set's matrix product. Every C[i, j] is one chain of additions in the order of k,
/// so its bits depend neither on its place in a tile nor on m or n.
struct GemmKernel {
  std::string_view name;
  std::int64_t panel_width = 0;     ///< columns of B in one packed panel
  std::int64_t tile_rows = 0;       ///< rows of A are padded to a multiple of this
  std::int64_t block_rows = 0;      ///< rows of A worth keeping in the second-level cache
  std::int64_t group_rows = 0;      ///< rows worth one reading of B; 0: a whole chunk
  std::int64_t block_depth = 0;     ///< largest depth of one call, a multiple of 256
  std::int64_t depth_multiple = 1;  ///< depths are padded to this with zeros
  bool beats_int8 = false;          ///< even for weights that Int8Kernel takes
  ListedCost listed_float;          ///< for formats without blocks
  ListedCost listed_block;
  std::int64_t single_bytes = 4;  ///< bytes per packed number with GemmPrecision::kSingle
  std::int64_t split_bytes = 4;   ///< ... with GemmPrecision::kSplit

  /// Stores rows of A as the kernel reads them; null if it reads f32[num_rows, depth] with
  /// `block_depth` floats from row to row. num_rows is a multiple of tile_rows; rows are `stride`
  /// floats apart. packed: num_rows * padded depth elements.
  void (*pack_rows)(const float* rows, std::int64_t stride, std::int64_t num_rows,
                    std::int64_t depth, GemmPrecision precision, void* packed) = nullptr;
  /// Packs a panel from B stored row by row: b[k * stride + j]. Missing columns become zeros.
  void (*pack_panel)(const float* b, std::int64_t stride, std::int64_t depth,
                     std::int64_t num_columns, GemmPrecision precision, void* panel) = nullptr;
  /// Packs a panel from B stored column by column: b[j * stride + k].
  void (*pack_panel_transposed)(const float* b, std::int64_t stride, std::int64_t depth,
                                std::int64_t num_columns, GemmPrecision precision,
                                void* panel) = nullptr;
  /// c[i * c_stride + j] = (accumulate ? c : 0) + sum over k. num_rows is a multiple of tile_rows;
  /// up to panel_width columns of c are written, of which only `num_columns` are meaningful.
  void (*multiply)(const void* rows, std::int64_t num_rows, const void* panel, std::int64_t depth,
                   std::int64_t num_columns, GemmPrecision precision, bool accumulate, float* c,
                   std::int64_t c_stride) = nullptr;
  /// The result of `multiply` for few tokens, bit for bit, with rows of weights instead of tokens
  /// in the lanes of vectors: out[t * out_stride + i] = (accumulate ? out : 0) + sum over k of
  /// rows[i * block_depth + k] * x[t * x_stride + k], i < few_rows, t < num_tokens <=
  /// kMaxFewTokens. Null if `multiply` wastes nothing.
  void (*multiply_few)(const float* rows, const float* x, std::int64_t x_stride, std::int64_t depth,
                       std::int64_t num_tokens, bool accumulate, float* out,
                       std::int64_t out_stride) = nullptr;
  std::int64_t few_rows = 0;
  /// out[j * out_stride + i] = in[i * in_stride + j] (+ bias[i] if given), i < rows, j < columns.
  void (*transpose)(const float* in, std::int64_t in_stride, std::int64_t rows,
                    std::int64_t columns, const float* bias, float* out,
                    std::int64_t out_stride) = nullptr;

  /// The activations that need an exponential, applied to products in place:
  /// gate[i] = f(gate[i]) * up[i], or f(gate[i]) if up is null; gelu in its tanh approximation.
  void (*silu)(std::int64_t n, float* gate, const float* up) = nullptr;
  void (*gelu)(std::int64_t n, float* gate, const float* up) = nullptr;
};

/// Kernels by instruction set; call only those compiled in and supported by the CPU.
GemmKernel PortableGemm();
GemmKernel Avx2Gemm();
GemmKernel Avx512Gemm();
GemmKernel NeonGemm();
/// AMX tiles on bfloat16, for CPUs and kernels that grant the tile state.
GemmKernel AmxGemm();

/// For BF16 weights on CPUs with AVX512_BF16: both factors in one bfloat16, without activations.
GemmKernel Avx512Bf16Gemm();

/// True if the CPU has AMX-BF16 and the operating system lets this process use it (requests the
/// permission on the first call).
bool IsAmxUsable();

}  // namespace powerinfer
