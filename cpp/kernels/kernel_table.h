// The kernels of one instruction set. Every table is compiled from the same sources with its own
// flags and namespace (kernels/isa/*/table.cpp); dispatch.cpp finds those that this CPU runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/int8_kernel.h"
#include "quant/formats.h"

namespace powerinfer {

/// One activation row in the forms that kernels take: f32 always, the others if
/// InfoOf(format).activations says so.
struct ActivationRow {
  const float* values = nullptr;  // f32[n]
  QuantizedVector quantized;      // int8 forms
  const std::uint64_t* sign_bits =
      nullptr;            // u64[n / 64]: bit i % 64 of word i / 64, set if x[i] < 0
  float mean_abs = 0.0F;  // the magnitude of every sign, see `binarize`
};

/// out[t * out_stride + r] = dot(row r, x[t]) for r in [0, num_rows), t in [0, num_tokens).
/// rows: `num_rows` rows of `columns` weights, `row_stride` bytes apart. They are read once for all
/// tokens, of which there are at most kMaxDotTokens. The result of a (row, token) pair has the same
/// bits whatever the other rows and tokens are and however many there are. Bytes are prefetched
/// `ahead` of their use (kernels/read_way.h).
using DotRowsFn = void (*)(const std::uint8_t* rows, std::int64_t row_stride, std::int64_t num_rows,
                           std::int64_t columns, const ActivationRow* x, std::int64_t num_tokens,
                           float* out, std::int64_t out_stride, std::int64_t ahead);
inline constexpr std::int64_t kMaxDotTokens = 32;

/// out[i] = weight i of the row, i in [0, columns).
using DequantizeRowFn = void (*)(const std::uint8_t* row, std::int64_t columns, float* out);

/// y[i] += scale * weight i of the row: the transposed down projection, one neuron at a time.
using AxpyRowFn = void (*)(const std::uint8_t* row, std::int64_t columns, float scale, float* y);

/// y[i] += scale0 * weight i of row0 + scale1 * weight i of row1, with the bits of two AxpyRowFn,
/// row0 first: y is loaded and stored once for both.
using AxpyTwoRowsFn = void (*)(const std::uint8_t* row0, const std::uint8_t* row1,
                               std::int64_t columns, float scale0, float scale1, float* y);

/// Rows that are added together, and those that come next: the latter are only prefetched.
inline constexpr std::int64_t kMaxGroupRows = 16;
struct RowGroup {
  const std::uint8_t* rows[kMaxGroupRows];
  const std::uint8_t* next[kMaxGroupRows];
  std::int64_t num_rows = 0, num_next = 0;
};
/// The terms of a group that one token adds: y += factors[i] * row places[i], for i in order.
struct GroupTerms {
  float* y = nullptr;
  std::int64_t count = 0;
  std::uint8_t places[kMaxGroupRows];
  float factors[kMaxGroupRows];
};
/// Adds the terms of several tokens, whose y differ, with the bits of AxpyRowFn for each term in
/// order: rows are unpacked once for all tokens.
using AddRowGroupFn = void (*)(const RowGroup& group, std::int64_t columns, const GroupTerms* terms,
                               std::int64_t num_terms);

/// Encodes a row of f32[columns], whole blocks. False, and an unfinished row, if a number is not
/// finite or beyond the format's scale.
using EncodeRowFn = bool (*)(const float* x, std::int64_t columns, std::uint8_t* row);
/// The same for the least sum of squared errors times weights[i], f32[columns] in (0, 1].
using EncodeWeightedRowFn = bool (*)(const float* x, const float* weights, std::int64_t columns,
                                     std::uint8_t* row);

/// One token of a head of the gated delta rule. Of each row of its state, with sums in an order
/// that depends on key_dim alone: d = beta * (v - decay * row . k), row <- decay * row + d * k,
/// out = row . q.
struct DeltaStep {
  const float* before = nullptr;  ///< f32[value_dim, key_dim]
  float* after = nullptr;         ///< likewise; may be `before`
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  const float* q = nullptr;  ///< f32[key_dim]
  const float* k = nullptr;  ///< f32[key_dim]
  const float* v = nullptr;  ///< f32[value_dim]
  float decay = 1.0F;
  float beta = 0.0F;
  float* out = nullptr;       ///< f32[value_dim]
  bool is_read_late = false;  ///< `after` need not stay in a cache
};

/// One token of a head of a selective scan. Of each row of its state, with sums in an order that
/// depends on state_dim alone: row <- decay * row + step * x * b, out = row . c + skip * x.
struct ScanStep {
  const float* before = nullptr;  ///< f32[head_dim, state_dim]
  float* after = nullptr;         ///< likewise; may be `before`
  std::int64_t state_dim = 0;
  std::int64_t head_dim = 0;
  const float* x = nullptr;  ///< f32[head_dim]
  const float* b = nullptr;  ///< f32[state_dim]
  const float* c = nullptr;  ///< f32[state_dim]
  float decay = 1.0F;
  float step = 0.0F;
  float skip = 0.0F;
  float* out = nullptr;       ///< f32[head_dim]
  bool is_read_late = false;  ///< `after` need not stay in a cache
};

struct KernelTable {
  std::string_view name;  ///< "portable", "avx2", "avxvnni", "avx512", "amx", "neon", "neoni8mm"
  DotRowsFn dot_rows[kNumFormats] = {};
  DequantizeRowFn dequantize_row[kNumFormats] = {};
  AxpyRowFn axpy_row[kNumFormats] = {};
  AxpyTwoRowsFn axpy_two_rows[kNumFormats] = {};
  AddRowGroupFn add_row_group[kNumFormats] = {};
  EncodeRowFn encode_row[kNumFormats] = {};  ///< null for formats that nothing is encoded to
  EncodeWeightedRowFn encode_weighted_row[kNumFormats] = {};  ///< null if weights change nothing
  /// Sums of (decoded[i] - given[i])^2 and of given[i]^2, i in [0, n), in one order everywhere; not
  /// finite where f32 overflows.
  void (*squared_loss)(const float* given, const float* decoded, std::int64_t n, double* error,
                       double* sum) = nullptr;
  Int8Kernel int8;  ///< prompt rows of block formats
  GemmKernel gemm;  ///< from PortableGemm(), Avx2Gemm()... of gemm.h
  GemmKernel bf16;  ///< prompt rows of BF16 weights; without functions if `gemm` takes them

  /// x f32[n] -> int8 blocks of 32 (n a multiple of 32). Round to nearest even; scale = max|x| /
  /// 127.
  void (*quantize)(const float* x, std::int64_t n, std::int8_t* values, float* scales,
                   float* sums) = nullptr;
  /// Weights in a group, a multiple of 256: eight 4-byte lanes of a vector, or more, are blocks.
  std::int64_t group_weights = 256;
  /// Reorders int8 values of whole groups into the byte order of their vectors: byte
  /// group_weights / 8 * v + 4 * j + k of a group is value 32 j + 4 v + k of it. half_sums:
  /// i32[n / group_weights, 2, group_weights / 32], sums of the blocks' first and second halves.
  void (*permute)(const std::int8_t* values, std::int64_t n, std::int8_t* permuted,
                  std::int32_t* half_sums) = nullptr;

  /// Signs of x f32[n], n a multiple of 64, into u64[n / 64]; returns the mean magnitude, not
  /// counting zeros at the end (padding). NaN and infinity reach the mean.
  float (*binarize)(const float* x, std::int64_t n, std::uint64_t* bits) = nullptr;

  // Plain vector operations.
  float (*dot_f32)(const float* a, const float* b, std::int64_t n) = nullptr;
  float (*dot_f16)(const std::uint16_t* a, const float* b, std::int64_t n) = nullptr;
  void (*axpy_f16)(const std::uint16_t* row, std::int64_t n, float scale, float* y) = nullptr;
  /// y[i] += sum over r, in order, of weights[r] * rows[r, i]; rows [num_rows, n] without gaps.
  void (*add_rows_f32)(const float* rows, std::int64_t num_rows, std::int64_t n,
                       const float* weights, float* y) = nullptr;
  void (*add_rows_f16)(const std::uint16_t* rows, std::int64_t num_rows, std::int64_t n,
                       const float* weights, float* y) = nullptr;
  /// Writes the i in [0, n) with !(z[i] <= threshold), ascending, and returns their number;
  /// list_from: with !(z[i] < threshold). NaN counts. ids: i32[n].
  std::int64_t (*list_above)(const float* z, std::int64_t n, float threshold,
                             std::int32_t* ids) = nullptr;
  std::int64_t (*list_from)(const float* z, std::int64_t n, float threshold,
                            std::int32_t* ids) = nullptr;
  /// out[j] += dot(row, x[tokens[j]]), j < count; x: f32[tokens, columns], x_stride apart. columns:
  /// whole vectors, a multiple of 16.
  void (*dot_listed)(const float* row, std::int64_t columns, const float* x, std::int64_t x_stride,
                     const std::uint16_t* tokens, std::int64_t count, float* out) = nullptr;
  /// y[c] += sum over i, in order, of weights[i] * rows[(places[i] - first) * stride + c], c <
  /// columns, a multiple of 16.
  void (*add_listed)(const float* rows, std::int64_t stride, const std::int32_t* places,
                     std::int64_t first, const float* weights, std::int64_t count,
                     std::int64_t columns, float* y) = nullptr;
  /// scores[i] = exp(scale * scores[i] - maximum) with *maximum the largest scaled score (-inf for
  /// n = 0); returns their sum.
  float (*softmax_weights)(float* scores, std::int64_t n, float scale, float* maximum) = nullptr;
  /// scores[i] = cap * tanh(scale * scores[i] / cap), in place.
  void (*cap_scores)(float* scores, std::int64_t n, float scale, float cap) = nullptr;
  void (*f32_to_f16)(const float* x, std::int64_t n, std::uint16_t* out) = nullptr;

  // Mixers with a state.
  /// out[c] = sum over j < num_taps, in order, of weights[j * n + c] * inputs[j][c], c < n.
  void (*convolve)(const float* const* inputs, const float* weights, std::int64_t num_taps,
                   std::int64_t n, float* out) = nullptr;
  void (*step_delta)(const DeltaStep& step) = nullptr;
  void (*step_scan)(const ScanStep& step) = nullptr;
  /// x[i] *= sigmoid(g[i]), i < n.
  void (*gate)(const float* g, std::int64_t n, float* x) = nullptr;

  /// True if prompt rows multiply whole matrices of this format in int8.
  bool UsesInt8Products(Format format) const { return int8.Takes(format) && !gemm.beats_int8; }

  /// The product of prompt rows with weights of this format, if `int8` does not take them.
  const GemmKernel& GemmFor(Format format) const {
    return format == Format::kBF16 && bf16.multiply != nullptr ? bf16 : gemm;
  }
};

/// Tables this CPU can run, best first; never empty ("portable" is always there).
const std::vector<const KernelTable*>& AvailableKernels();
/// The table of that name, or null if this CPU or build has none.
const KernelTable* FindKernels(std::string_view name);

}  // namespace powerinfer
