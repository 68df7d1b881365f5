#include "ops/screened_head.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/chunk_spans.h"
#include "base/rounding.h"
#include "ops/logits.h"

namespace powerinfer {
namespace {

// Rows handed out at a time: some 100 KiB of a copy of 576 columns.
constexpr std::int64_t kScreenedRows = 256;
// Rows whose bytes are fetched before they are multiplied.
constexpr std::size_t kFetchedAhead = 4;
constexpr std::int64_t kCacheLine = 64;
// Sums of n f32 products are off by at most n 2^-24 times the norms; three sums are compared, and a
// copy's norm is at most twice its row's. Norms themselves are rounded by less than 2^-10.
constexpr float kSumError = 0x1p-21F;
constexpr float kNormError = 1.0F + 0x1p-10F;

float Norm(std::span<const float> x) {
  double sum = 0.0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return static_cast<float>(std::sqrt(sum));
}

/// What the int8 form of x stands for.
std::vector<float> Rounded(const KernelTable& kernels, std::span<const float> x) {
  const auto size = static_cast<std::int64_t>(x.size());
  std::vector<std::int8_t> values(x.size());
  std::vector<float> scales(x.size() / 32), sums(x.size() / 32), rounded(x.size());
  kernels.quantize(x.data(), size, values.data(), scales.data(), sums.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    rounded[i] = static_cast<float>(values[i]) * scales[i / 32];
  }
  return rounded;
}

/// The inputs of the copy, and the factors of a row's norms in its bound.
struct CopyInputs {
  std::vector<float> rows;           ///< f32[num_tokens, copy columns]
  std::vector<float> single, whole;  ///< factors of each token

  CopyInputs(const OpContext& context, RowsView<const float> x, Format format,
             const HeadCopy& copy) {
    const bool is_rounded = InfoOf(format).uses_int8_activations();
    for (std::int64_t token = 0; token < x.rows; ++token) {
      const std::span<const float> given(x.Row(token), static_cast<std::size_t>(x.columns));
      Add(context.kernels, copy,
          is_rounded ? Rounded(context.kernels, given)
                     : std::vector<float>(given.begin(), given.end()));
    }
  }

 private:
  /// x: what the head's kernels see of a token.
  void Add(const KernelTable& kernels, const HeadCopy& copy, std::span<const float> x) {
    std::vector<float> ordered;
    for (const std::int32_t column : copy.columns) {
      ordered.push_back(x[static_cast<std::size_t>(column)]);
    }
    rows.insert(rows.end(), ordered.begin(), ordered.end());
    const std::vector<float> seen = Rounded(kernels, ordered);
    const std::size_t num_double = ordered.size() - x.size();
    const std::span first = std::span(seen).first(num_double);
    const std::span second = std::span(seen).first(x.size()).subspan(num_double);
    // Both parts of a column get one input only if they are rounded alike.
    const std::span again = std::span(seen).last(num_double);
    std::vector<float> lost(ordered.begin(), ordered.begin() + std::ssize(x));
    for (std::size_t i = 0; i < x.size(); ++i) lost[i] -= seen[i];
    std::vector<float> apart(first.begin(), first.end());
    for (std::size_t i = 0; i < num_double; ++i) apart[i] -= again[i];
    single.push_back(Norm(second) * kNormError);
    const auto size = static_cast<float>(ordered.size());
    whole.push_back(
        (copy.double_error * Norm(first) + Norm(lost) + Norm(apart) + kSumError * size * Norm(x)) *
        kNormError);
  }
};

class Screen {
 public:
  Screen(const OpContext& context, RowsView<const float> x, const LinearItem& item,
         const HeadCopy& copy, std::span<const WantedLogits> wanted)
      : context_(context),
        item_(item),
        copy_(copy),
        wanted_(wanted),
        num_tokens_(x.rows),
        inputs_(context, x, item.matrix.format, copy),
        lowest_(static_cast<std::size_t>(x.rows)) {
    const Format format = item.matrix.format;
    x_ = PrepareActivations(context, x, std::span(&format, 1));
  }

  std::int64_t Run() {
    const std::int64_t num_chunks = DivideUp(item_.matrix.rows, kScreenedRows);
    Approximate(num_chunks);
    const auto find = [this](std::int64_t token, std::int32_t) { FindLowest(token); };
    context_.team.ParallelFor(num_tokens_, std::ref(find));
    std::atomic<std::int64_t> computed = 0;
    ForChunksInSpans(context_.team, num_chunks, [&](std::int64_t chunk) {
      computed.fetch_add(ComputeWanted(chunk * kScreenedRows), std::memory_order_relaxed);
    });
    return computed.load();
  }

 private:
  std::int64_t End(std::int64_t first) const {
    return std::min(item_.matrix.rows, first + kScreenedRows);
  }

  /// out = copy * x.
  void Approximate(std::int64_t num_chunks) {
    const std::int64_t columns = copy_.matrix.columns;
    const RowsView<const float> rows{inputs_.rows.data(), num_tokens_, columns, columns};
    const OpContext nested = context_.Nested();
    const ActivationRow* x = PrepareActivations(nested, rows, std::span(&copy_.matrix.format, 1));
    ForChunksInSpans(context_.team, num_chunks, [&](std::int64_t chunk) {
      const std::int64_t first = chunk * kScreenedRows;
      for (std::int64_t token = 0; token < num_tokens_; token += kMaxDotTokens) {
        const std::int64_t tokens = std::min(kMaxDotTokens, num_tokens_ - token);
        Dot(copy_.matrix, first, End(first) - first, x + token, tokens,
            item_.out.Row(token) + first, item_.out.stride);
      }
      for (std::int64_t token = 0; item_.bias != nullptr && token < num_tokens_; ++token) {
        float* out = item_.out.Row(token);
        for (std::int64_t row = first; row < End(first); ++row) out[row] += item_.bias[row];
      }
    });
  }

  void Dot(const MatrixView& matrix, std::int64_t first, std::int64_t count, const ActivationRow* x,
           std::int64_t tokens, float* out, std::int64_t stride) const {
    context_.kernels.dot_rows[static_cast<std::size_t>(matrix.format)](
        matrix.Row(first), matrix.row_bytes, count, matrix.columns, x, tokens, out, stride,
        context_.ways.Ahead(matrix.format, tokens));
  }

  float Logit(std::int64_t row, std::int64_t token) const {
    float logit = 0.0F;
    Dot(item_.matrix, row, 1, x_ + token, 1, &logit, 1);
    return item_.bias == nullptr ? logit : logit + item_.bias[row];
  }

  /// What a logit must reach to be wanted: what as many as are wanted reach, of the rows that look
  /// largest and a few more.
  void FindLowest(std::int64_t token) {
    const WantedLogits& wanted = wanted_[static_cast<std::size_t>(token)];
    const std::int64_t rows = item_.matrix.rows;
    std::vector<std::int64_t> ids(
        static_cast<std::size_t>(std::min(rows, wanted.count + wanted.count / 2 + 8)));
    WriteLargest({item_.out.Row(token), static_cast<std::size_t>(rows)}, ids);
    for (const std::int64_t row : ids) Fetch(row);
    std::vector<float> logits(ids.size());
    std::ranges::transform(ids, logits.begin(),
                           [&](std::int64_t row) { return Logit(row, token); });
    const auto last = logits.begin() +
                      static_cast<std::ptrdiff_t>(std::min(wanted.count, std::ssize(logits)) - 1);
    const bool is_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return x != x; });
    std::nth_element(logits.begin(), last, logits.end(), std::greater<>());
    lowest_[static_cast<std::size_t>(token)] =
        is_nan ? std::numeric_limits<float>::quiet_NaN() : *last - wanted.margin;
  }

  std::int64_t ComputeWanted(std::int64_t first) {
    std::int64_t computed = 0;
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      computed += ComputeWanted(first, token);
    }
    return computed;
  }

  std::int64_t ComputeWanted(std::int64_t first, std::int64_t token) {
    const auto place = static_cast<std::size_t>(token);
    const float lowest = lowest_[place];
    const float single = inputs_.single[place], whole = inputs_.whole[place];
    float* out = item_.out.Row(token) + first;
    const float* copy_norms = copy_.norms.Row(0) + first;
    const float* row_norms = copy_.norms.Row(1) + first;
    bool is_unwanted[kScreenedRows];
    for (std::int64_t i = 0; i < End(first) - first; ++i) {
      is_unwanted[i] = out[i] + (single * copy_norms[i] + whole * row_norms[i]) < lowest;
    }
    std::int64_t ids[kScreenedRows];
    std::size_t count = 0;
    for (std::int64_t i = 0; i < End(first) - first; ++i) {
      ids[count] = i;
      count += static_cast<std::size_t>(!is_unwanted[i]);
      out[i] = kUnwantedLogit;
    }
    for (std::size_t i = 0; i < std::min(kFetchedAhead, count); ++i) Fetch(first + ids[i]);
    for (std::size_t i = 0; i < count; ++i) {
      if (i + kFetchedAhead < count) Fetch(first + ids[i + kFetchedAhead]);
      out[ids[i]] = Logit(first + ids[i], token);
    }
    return static_cast<std::int64_t>(count);
  }

  void Fetch(std::int64_t row) const {
    const std::uint8_t* bytes = item_.matrix.Row(row);
    for (std::int64_t at = 0; at < item_.matrix.row_bytes; at += kCacheLine) {
      __builtin_prefetch(bytes + at);
    }
  }

  const OpContext& context_;
  const LinearItem& item_;
  const HeadCopy& copy_;
  std::span<const WantedLogits> wanted_;
  std::int64_t num_tokens_;
  CopyInputs inputs_;
  std::vector<float> lowest_;  ///< per token
  const ActivationRow* x_ = nullptr;
};

}  // namespace

std::int64_t ScreenedHead(const OpContext& context, RowsView<const float> x, const LinearItem& item,
                          const HeadCopy& copy, std::span<const WantedLogits> wanted) {
  return x.rows == 0 ? 0 : Screen(context, x, item, copy, wanted).Run();
}

}  // namespace powerinfer
