// Selection of logits against a stable sort.
#include "ops/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int64_t> BySorting(const std::vector<float>& logits, std::size_t count) {
  std::vector<std::int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](std::int64_t left, std::int64_t right) {
    if (std::isnan(value(left)) || std::isnan(value(right)))
      return std::isnan(value(right)) && !std::isnan(value(left));
    return value(left) > value(right);
  });
  ids.resize(count);
  return ids;
}

void CheckLargest(const std::vector<float>& logits) {
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{40}, logits.size() / 3, logits.size()}) {
    if (count > logits.size()) continue;
    std::vector<std::int64_t> ids(count, -1);
    WriteLargest(logits, ids);
    CHECK(ids == BySorting(logits, count));
  }
}

TEST_CASE("TheLargestLogitsAreThoseOfAStableSort") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 4);
  for (const std::size_t size : {1U, 2U, 63U, 64U, 65U, 1000U, 9001U}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = normal(random);
    CheckLargest(logits);
    for (float& logit : logits) logit = std::round(logit);
    CheckLargest(logits);
    for (std::size_t i = 0; i < size; ++i) {
      if (i % 3 == 0) logits[i] = -kInfinity;
      if (i % 7 == 0) logits[i] = kNaN;
    }
    CheckLargest(logits);
    CheckLargest(std::vector<float>(size, -kInfinity));
    CheckLargest(std::vector<float>(size, kNaN));
  }
}

TEST_CASE("ZerosOfBothSignsAreEqual") { CheckLargest({-0.0F, 0.0F, -0.0F, 0.0F}); }

TEST_CASE("NumbersThatAreNotFiniteAreFoundWhereverTheyAre") {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> values(77, -kMost);
  CHECK(AllFinite(values));
  CHECK(AllFinite({}));
  for (const float bad : {kInfinity, -kInfinity, kNaN, -kNaN}) {
    for (float& value : values) {
      value = bad;
      CHECK_FALSE(AllFinite(values));
      value = kMost;
    }
  }
  CHECK(AllFinite(values));
}

}  // namespace
}  // namespace powerinfer::testing
