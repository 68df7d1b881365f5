#include "ops/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace powerinfer {
namespace {

// The largest logits of groups bound those wanted from below. More groups than wanted logits keep
// two of these from sharing one; smaller groups cost more to compare.
constexpr std::size_t kGroupsPerLogit = 2;
constexpr std::size_t kLargestGroup = 64;
// Logits that are compared with the bound at once.
constexpr std::size_t kBlock = 64;

constexpr std::uint32_t kMagnitude = 0x7fffffff;

/// A logit and its id as one number that sorts as `WriteLargest` does; not for NaN.
std::uint64_t SortKey(float logit, std::size_t id) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0F);  // -0 becomes 0
  const std::uint32_t descending = bits > kMagnitude ? bits : bits ^ kMagnitude;
  return std::uint64_t{descending} << 32 | id;
}

/// Returns a number that at least `count` logits reach, or somewhat more; minus infinity if NaN
/// leaves fewer.
float LowerBound(std::span<const float> logits, std::size_t count) {
  const std::size_t group_size =
      std::clamp<std::size_t>(logits.size() / (kGroupsPerLogit * count), 1, kLargestGroup);
  const std::size_t num_groups = logits.size() / group_size;
  std::vector<float> highest(num_groups, -std::numeric_limits<float>::infinity());
  // Members of a group are this far apart, so that lanes of a vector belong to different groups.
  for (std::size_t k = 0; k < group_size; ++k) {
    const float* row = logits.data() + k * num_groups;
    for (std::size_t i = 0; i < num_groups; ++i) {
      highest[i] = row[i] > highest[i] ? row[i] : highest[i];
    }
  }
  const auto last = highest.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(highest.begin(), last, highest.end(), std::greater<>());
  return *last;
}

bool AnyReaches(std::span<const float> logits, float bound) {
  std::uint32_t any = 0;
  for (const float logit : logits) any |= static_cast<std::uint32_t>(logit >= bound);
  return any != 0;
}

/// Logits above a bound, and the first ids of those that equal it.
struct Found {
  std::vector<std::uint64_t> above;  ///< sort keys
  std::vector<std::int64_t> equals;
};

Found FindFrom(float bound, std::span<const float> logits, std::size_t most_equals) {
  Found found;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, logits.size());
    if (!AnyReaches(logits.subspan(begin, end - begin), bound)) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if (logits[i] > bound) {
        found.above.push_back(SortKey(logits[i], i));
      } else if (logits[i] == bound && found.equals.size() < most_equals) {
        found.equals.push_back(static_cast<std::int64_t>(i));
      }
    }
  }
  return found;
}

}  // namespace

bool AllFinite(std::span<const float> values) {
  constexpr std::uint32_t kLowestExponentBit = 0x00800000;
  // Only an exponent of ones, that of NaN and infinity, carries into the sign.
  std::uint32_t carries = 0;
  for (const float value : values) {
    carries |= (std::bit_cast<std::uint32_t>(value) & kMagnitude) + kLowestExponentBit;
  }
  return carries <= kMagnitude;
}

void WriteLargest(std::span<const float> logits, std::span<std::int64_t> ids) {
  if (ids.empty()) return;
  auto [above, equals] = FindFrom(LowerBound(logits, ids.size()), logits, ids.size());
  if (above.size() > ids.size()) {
    const auto end = above.begin() + static_cast<std::ptrdiff_t>(ids.size());
    std::nth_element(above.begin(), end, above.end());
    above.erase(end, above.end());
  }
  std::sort(above.begin(), above.end());
  std::size_t place = 0;
  for (const std::uint64_t key : above) ids[place++] = static_cast<std::uint32_t>(key);
  for (std::size_t i = 0; place < ids.size() && i < equals.size(); ++i) ids[place++] = equals[i];
  for (std::size_t i = 0; place < ids.size(); ++i) {
    if (std::isnan(logits[i])) ids[place++] = static_cast<std::int64_t>(i);
  }
}

}  // namespace powerinfer
