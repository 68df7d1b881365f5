#include "sparse/neuron_list.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace powerinfer {
namespace {

// Weights of a block format added between two bursts of prefetches. Unpacking them takes as long as
// memory takes to deliver as many, and a burst as long as a row would leave memory idle meanwhile:
// Q4_0 rows of 4096 weights take 415 ns this way, 550 ns with one burst a row, 600 ns without.
// Plain formats are added faster than memory delivers: one burst a row.
constexpr std::int64_t kAddColumns = 512;

/// True if adding rows in groups is faster. If few tokens use a neuron, loading the sums again for
/// every group costs more than unpacking a row for each of them. Sixteen tokens of a dense block,
/// Q4_0, AVX-512 on a Zen 5: a step takes 154 ms instead of 204.
bool UsesGroups(const NeuronList& list, std::int64_t num_tokens) {
  return num_tokens > 2 && num_tokens <= kMaxListTokens &&
         2 * list.num_entries >= num_tokens * list.num_neurons;
}

/// Fetches bytes [begin, end) of a row into the second-level cache. (Inlined early by force: GCC
/// deletes calls of a function that only prefetches as having no effect.)
[[gnu::always_inline]] inline void Prefetch(const std::uint8_t* row, std::int64_t begin,
                                            std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += 64) __builtin_prefetch(row + i, 0, 2);
}

/// The rows of a list's neurons, each prefetched `ahead` bytes of other rows before its use.
class RowsAhead {
 public:
  RowsAhead(const MatrixView& matrix, const NeuronList& list, std::int64_t ahead)
      : matrix_(matrix),
        list_(list),
        distance_(1 + ahead / std::max<std::int64_t>(1, matrix.row_bytes)) {
    const std::int64_t count = std::min(distance_, list.num_neurons);
    for (std::int64_t i = 0; i < count; ++i) Prefetch(matrix.Row(list.ids[i]), 0, matrix.row_bytes);
  }

  /// The row to fetch while that of the neuron at `place` is used, or null.
  const std::uint8_t* Next(std::int64_t place) const {
    const std::int64_t next = place + distance_;
    return next < list_.num_neurons ? matrix_.Row(list_.ids[next]) : nullptr;
  }

 private:
  const MatrixView& matrix_;
  const NeuronList& list_;
  std::int64_t distance_;
};

/// The inputs of a neuron's tokens, contiguous: copies, unless they already are.
class ListedInputs {
 public:
  explicit ListedInputs(const ActivationRow* x) : x_(x) {}

  const ActivationRow* Of(const std::int32_t* tokens, std::int64_t count) {
    const ActivationRow* first = x_ + tokens[0];
    if (tokens[count - 1] - tokens[0] == count - 1) return first;
    for (std::int64_t t = 0; t < count; ++t) {
      copies_[static_cast<std::size_t>(t)] = x_[tokens[t]];
    }
    return copies_.data();
  }

 private:
  const ActivationRow* x_;
  std::array<ActivationRow, kMaxDotTokens> copies_;
};

/// Neuron `first` of a list and the next one: added together for the tokens of both, which loads
/// and stores the sums once for two rows. Bits are those of one row after the other.
class NeuronPair {
 public:
  NeuronPair(const KernelTable& kernels, const MatrixView& matrix, const NeuronList& list,
             std::int64_t first)
      : list_(list),
        axpy_row_(kernels.axpy_row[static_cast<std::size_t>(matrix.format)]),
        axpy_two_rows_(kernels.axpy_two_rows[static_cast<std::size_t>(matrix.format)]),
        begin_(list.Begin(first)),
        middle_(list.ends[first]),
        end_(middle_) {
    rows_[0] = rows_[1] = matrix.Row(list.ids[first]);
    if (first + 1 >= list.num_neurons) return;
    rows_[1] = matrix.Row(list.ids[first + 1]);
    end_ = list.ends[first + 1];
  }

  /// Adds `count` columns from `column` on, which begin `at` bytes into the rows.
  void Add(std::int64_t at, std::int64_t column, std::int64_t count, RowsView<float> sums) const {
    std::int64_t a = begin_;
    std::int64_t b = middle_;
    while (a < middle_ || b < end_) {
      const bool has_first = a < middle_ && (b == end_ || list_.tokens[a] <= list_.tokens[b]);
      const bool has_second = b < end_ && (a == middle_ || list_.tokens[b] <= list_.tokens[a]);
      float* y = sums.Row(list_.tokens[has_first ? a : b]) + column;
      if (has_first && has_second) {
        axpy_two_rows_(rows_[0] + at, rows_[1] + at, count, list_.values[a], list_.values[b], y);
      } else {
        axpy_row_((has_first ? rows_[0] : rows_[1]) + at, count, list_.values[has_first ? a : b],
                  y);
      }
      a += has_first ? 1 : 0;
      b += has_second ? 1 : 0;
    }
  }

 private:
  const NeuronList& list_;
  AxpyRowFn axpy_row_;
  AxpyTwoRowsFn axpy_two_rows_;
  const std::uint8_t* rows_[2];
  std::int64_t begin_, middle_, end_;
};

/// Neurons [first, first + count) of a list by the tokens that add them.
class NeuronGroup {
 public:
  NeuronGroup(const MatrixView& matrix, const NeuronList& list, std::int64_t first,
              RowsView<float> sums) {
    rows_.num_rows = std::min(kMaxGroupRows, list.num_neurons - first);
    rows_.num_next = std::min(kMaxGroupRows, list.num_neurons - first - rows_.num_rows);
    for (std::int64_t i = 0; i < rows_.num_rows; ++i) {
      rows_.rows[i] = matrix.Row(list.ids[first + i]);
    }
    for (std::int64_t i = 0; i < rows_.num_next; ++i) {
      rows_.next[i] = matrix.Row(list.ids[first + rows_.num_rows + i]);
    }
    std::array<std::uint8_t, kMaxListTokens> place_of_token;
    place_of_token.fill(kNoPlace);
    for (std::int64_t i = 0; i < rows_.num_rows; ++i) {
      for (std::int64_t e = list.Begin(first + i); e < list.ends[first + i]; ++e) {
        std::uint8_t& place = place_of_token[static_cast<std::size_t>(list.tokens[e])];
        if (place == kNoPlace) {
          place = static_cast<std::uint8_t>(num_terms_);
          terms_[num_terms_].y = sums.Row(list.tokens[e]);
          terms_[num_terms_++].count = 0;
        }
        GroupTerms& terms = terms_[place];
        terms.places[terms.count] = static_cast<std::uint8_t>(i);
        terms.factors[terms.count++] = list.values[e];
      }
    }
  }

  void Add(AddRowGroupFn add, std::int64_t columns) const {
    add(rows_, columns, terms_.data(), static_cast<std::int64_t>(num_terms_));
  }
  std::int64_t NumRows() const { return rows_.num_rows; }

 private:
  static constexpr std::uint8_t kNoPlace = 255;
  static_assert(kMaxListTokens <= kNoPlace);

  RowGroup rows_;
  std::array<GroupTerms, kMaxListTokens> terms_;
  std::size_t num_terms_ = 0;
};

/// AddNeurons for lists whose neurons have several tokens: rows are unpacked once for all of them.
void AddGroups(const OpContext& context, const MatrixView& matrix, const NeuronList& list,
               RowsView<float> sums) {
  const AddRowGroupFn add = context.kernels.add_row_group[static_cast<std::size_t>(matrix.format)];
  for (std::int64_t i = 0; i < std::min(kMaxGroupRows, list.num_neurons); ++i) {
    Prefetch(matrix.Row(list.ids[i]), 0, matrix.row_bytes);
  }
  for (std::int64_t first = 0; first < list.num_neurons;) {
    const NeuronGroup group(matrix, list, first, sums);
    group.Add(add, matrix.columns);
    first += group.NumRows();
  }
}

}  // namespace

NeuronList::NeuronList(void* memory, std::int64_t max_neurons, std::int64_t num_tokens) {
  // Appending writes one place beyond the end before it knows whether to keep it.
  const std::int64_t max_entries = max_neurons * num_tokens + 1;
  ids = static_cast<std::int32_t*>(memory);
  ends = ids + max_neurons + 1;
  tokens = ends + max_neurons + 1;
  values = reinterpret_cast<float*>(tokens + max_entries);
  up = values + max_entries;
}

std::int64_t NeuronList::NumBytes(std::int64_t max_neurons, std::int64_t num_tokens) {
  return 4 * (2 * (max_neurons + 1) + 3 * (max_neurons * num_tokens + 1));
}

void ListNeurons(const NeuronIds& ids, std::int64_t begin, std::int64_t end, std::uint32_t* masks,
                 NeuronList* list) {
  std::fill(masks, masks + (end - begin), 0U);
  for (std::int64_t token = 0; token < ids.num_tokens; ++token) {
    const std::span<const std::int32_t> all = ids.Of(token);
    const auto last = std::lower_bound(all.begin(), all.end(), end);
    for (auto id = std::lower_bound(all.begin(), last, begin); id != last; ++id) {
      masks[*id - begin] |= 1U << static_cast<std::uint32_t>(token);
    }
  }
  for (std::int64_t id = begin; id < end; ++id) {
    std::int64_t entry = list->num_entries;
    for (std::uint32_t mask = masks[id - begin]; mask != 0; mask &= mask - 1) {
      list->tokens[entry++] = std::countr_zero(mask);
    }
    list->FinishNeuron(static_cast<std::int32_t>(id), entry);
  }
}

void DotNeurons(const OpContext& context, const MatrixView& matrix, const float* bias,
                const ActivationRow* x, const NeuronList& list, float* out) {
  const DotRowsFn dot_rows = context.kernels.dot_rows[static_cast<std::size_t>(matrix.format)];
  const ReadWay& way = context.ways.Of(matrix.format);
  const RowsAhead ahead(matrix, list, way.gather_ahead);
  ListedInputs inputs(x);
  std::int64_t entry = 0;
  for (std::int64_t i = 0; i < list.num_neurons; ++i) {
    const std::uint8_t* next = ahead.Next(i);
    if (next != nullptr) Prefetch(next, 0, matrix.row_bytes);
    const std::uint8_t* row = matrix.Row(list.ids[i]);
    const std::int64_t begin = entry;
    const std::int64_t end = list.ends[i];
    for (; entry < end; entry += kMaxDotTokens) {
      const std::int64_t count = std::min(kMaxDotTokens, end - entry);
      dot_rows(row, matrix.row_bytes, 1, matrix.columns, inputs.Of(list.tokens + entry, count),
               count, out + entry, 1, way.ahead);
    }
    entry = end;
    if (bias == nullptr) continue;
    for (std::int64_t e = begin; e < end; ++e) out[e] += bias[list.ids[i]];
  }
}

void AddNeurons(const OpContext& context, const MatrixView& matrix, const NeuronList& list,
                RowsView<float> sums) {
  if (UsesGroups(list, sums.rows)) {
    return AddGroups(context, matrix, list, sums);
  }
  const bool is_packed = InfoOf(matrix.format).block_size > 1;
  const std::int64_t step = is_packed ? kAddColumns : matrix.columns;
  const std::int64_t step_bytes = RowBytes(matrix.format, step);
  const RowsAhead ahead(matrix, list, context.ways.Of(matrix.format).add_ahead);
  for (std::int64_t i = 0; i < list.num_neurons; i += 2) {
    const NeuronPair pair(context.kernels, matrix, list, i);
    const std::uint8_t* next[2] = {ahead.Next(i), ahead.Next(i + 1)};
    std::int64_t at = 0;
    for (std::int64_t column = 0; column < matrix.columns; column += step, at += step_bytes) {
      for (const std::uint8_t* row : next) {
        if (row != nullptr) Prefetch(row, at, std::min(at + step_bytes, matrix.row_bytes));
      }
      pair.Add(at, column, std::min(step, matrix.columns - column), sums);
    }
  }
}

}  // namespace powerinfer
