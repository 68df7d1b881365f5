#include "ops/state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/delta_rule.h"
#include "ops/selective_scan.h"
#include "ops/short_conv.h"
#include "tests/ops_testing.h"

namespace powerinfer::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Tokens of some sequences, one after the other, and their slots.
struct States {
  std::vector<std::int32_t> sequences, sources, targets;

  States(const std::vector<std::int32_t>& lengths, std::vector<std::int32_t> from,
         std::vector<std::int32_t> to)
      : sources(std::move(from)), targets(std::move(to)) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sequences.insert(sequences.end(), static_cast<std::size_t>(lengths[i]),
                       static_cast<std::int32_t>(i));
    }
  }
  BatchView View() const {
    BatchView batch;
    batch.sequences = sequences.data();
    batch.num_tokens = std::ssize(sequences);
    batch.num_sequences = std::ssize(sources);
    batch.state_sources = sources.data();
    batch.state_targets = targets.data();
    return batch;
  }
};

/// The step of DeltaStep in f64: out, then the rows after it.
std::vector<double> ExactStep(const DeltaStep& step) {
  std::vector<double> out, after;
  for (std::int64_t row = 0; row < step.value_dim; ++row) {
    const float* before = step.before + row * step.key_dim;
    double product = 0.0, result = 0.0;
    for (std::int64_t i = 0; i < step.key_dim; ++i) {
      product += static_cast<double>(before[i]) * step.k[i];
    }
    const double delta = step.beta * (step.v[row] - step.decay * product);
    for (std::int64_t i = 0; i < step.key_dim; ++i) {
      after.push_back(static_cast<double>(step.decay) * before[i] + delta * step.k[i]);
      result += after.back() * step.q[i];
    }
    out.push_back(result);
  }
  out.insert(out.end(), after.begin(), after.end());
  return out;
}

/// Of a head's state in these tests.
constexpr std::size_t kMostNumbers = 128 * 9;

struct HeadStep {
  std::vector<float> before, after, q, k, v, out;
  DeltaStep step;

  HeadStep(std::int64_t key_dim, std::int64_t value_dim, Random& random)
      : before(RandomFloats(key_dim * value_dim, random)),
        after(before.size()),
        q(RandomFloats(key_dim, random)),
        k(RandomFloats(key_dim, random)),
        v(RandomFloats(value_dim, random)),
        out(v.size()) {
    step = {before.data(), after.data(), key_dim, value_dim, q.data(),
            k.data(),      v.data(),     0.875F,  0.3125F,   out.data()};
  }
  std::vector<float> Results() const {
    std::vector<float> all = out;
    all.insert(all.end(), after.begin(), after.end());
    return all;
  }
};

TEST_CASE("a step of the delta rule is that of exact arithmetic, with every kernel set") {
  Random random(1);
  for (const KernelTable* table : AvailableKernels()) {
    for (const auto& [key_dim, value_dim] :
         {std::pair{1, 1}, {3, 5}, {16, 16}, {20, 6}, {128, 9}}) {
      CAPTURE(table->name);
      CAPTURE(key_dim);
      HeadStep head(key_dim, value_dim, random);
      const std::vector<double> exact = ExactStep(head.step);
      table->step_delta(head.step);
      const std::vector<float> got = head.Results();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(std::abs(got[i] - exact[i]) < 1e-6 * key_dim);
      }
      // In place, and whatever the rows beside it.
      HeadStep again = head;
      again.after = again.before;
      again.step.before = again.step.after = again.after.data();
      again.step.out = again.out.data();
      table->step_delta(again.step);
      CHECK(SameBits(again.Results(), got));
      again.after = again.before;
      again.after[0] = kNaN;
      table->step_delta(again.step);
      CHECK(std::isnan(again.out[0]));
      for (std::size_t row = 1; row < again.out.size(); ++row) CHECK(again.out[row] == got[row]);
      // What is read late may be stored otherwise, where it is aligned.
      alignas(64) float late[kMostNumbers];
      again.step.before = head.before.data();
      again.step.after = late;
      again.step.is_read_late = true;
      table->step_delta(again.step);
      std::copy_n(late, again.after.size(), again.after.data());
      CHECK(SameBits(again.Results(), got));
    }
  }
}

/// The step of ScanStep in f64: out, then the rows after it.
std::vector<double> ExactStep(const ScanStep& step) {
  std::vector<double> out, after;
  for (std::int64_t row = 0; row < step.head_dim; ++row) {
    double result = static_cast<double>(step.skip) * step.x[row];
    for (std::int64_t i = 0; i < step.state_dim; ++i) {
      after.push_back(static_cast<double>(step.decay) * step.before[row * step.state_dim + i] +
                      static_cast<double>(step.step) * step.x[row] * step.b[i]);
      result += after.back() * step.c[i];
    }
    out.push_back(result);
  }
  out.insert(out.end(), after.begin(), after.end());
  return out;
}

TEST_CASE("a step of a selective scan is that of exact arithmetic, with every kernel set") {
  Random random(5);
  for (const KernelTable* table : AvailableKernels()) {
    for (const auto& [state_dim, head_dim] :
         {std::pair{1, 1}, {3, 5}, {16, 16}, {20, 6}, {128, 9}}) {
      CAPTURE(table->name);
      CAPTURE(state_dim);
      const auto size = static_cast<std::size_t>(head_dim * state_dim);
      const std::vector<float> before = RandomFloats(head_dim * state_dim, random);
      const std::vector<float> x = RandomFloats(head_dim, random);
      const std::vector<float> b = RandomFloats(state_dim, random);
      const std::vector<float> c = RandomFloats(state_dim, random);
      const auto step_to = [&](const float* from, float* state, bool is_read_late) {
        std::vector<float> all(x.size());
        table->step_scan({from, state, state_dim, head_dim, x.data(), b.data(), c.data(), 0.875F,
                          0.3125F, -0.5F, all.data(), is_read_late});
        all.insert(all.end(), state, state + size);
        return all;
      };
      const auto run = [&](const float* from, std::vector<float>& state) {
        return step_to(from, state.data(), false);
      };
      std::vector<float> after(size);
      const std::vector<float> got = run(before.data(), after);
      const std::vector<double> exact =
          ExactStep({before.data(), nullptr, state_dim, head_dim, x.data(), b.data(), c.data(),
                     0.875F, 0.3125F, -0.5F, nullptr});
      REQUIRE(got.size() == exact.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(std::abs(got[i] - exact[i]) < 1e-6 * state_dim);
      }
      // In place, and whatever the rows beside it.
      after = before;
      CHECK(SameBits(run(after.data(), after), got));
      after = before;
      after[0] = kNaN;
      const std::vector<float> damaged = run(after.data(), after);
      CHECK(std::isnan(damaged[0]));
      for (std::size_t row = 1; row < x.size(); ++row) CHECK(damaged[row] == got[row]);
      // As for the delta rule.
      alignas(64) float late[kMostNumbers];
      CHECK(SameBits(step_to(before.data(), late, true), got));
    }
  }
}

TEST_CASE("gates have the same bits with every kernel set") {
  Random random(2);
  std::vector<float> g = RandomFloats(37, random);
  for (float& value : g) value *= 100.0F;
  g[5] = kNaN;
  const std::vector<float> x = RandomFloats(37, random);
  std::vector<float> first;
  for (const KernelTable* table : AvailableKernels()) {
    std::vector<float> got = x;
    table->gate(g.data(), 37, got.data());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK((i == 5
                 ? std::isnan(got[i])
                 : std::abs(got[i] - x[i] / (1.0 + std::exp(static_cast<double>(-g[i])))) < 1e-6));
    }
    if (first.empty()) first = got;
    CHECK(SameBits(got, first));
  }
}

/// Rows of one sequence, computed by run(context, state, batch, first row) in steps that end at
/// `cuts`.
template <typename Run>
std::vector<float> InSteps(const KernelTable& table, std::int32_t threads, std::int64_t state_size,
                           const std::vector<std::int32_t>& cuts, const Run& run) {
  const StateLayer state(2, state_size);
  TestTeam team(threads, table);
  std::vector<float> all;
  std::int32_t first = 0, source = -1;
  for (const std::int32_t cut : cuts) {
    const std::int32_t target = source == 0 ? 1 : 0;
    const States states({cut - first}, {source}, {target});
    const std::vector<float> rows = run(team.context, state, states.View(), first);
    all.insert(all.end(), rows.begin(), rows.end());
    source = target;
    first = cut;
  }
  return all;
}

template <typename Run>
std::vector<float> CheckCuts(const KernelTable& table, std::int64_t state_size, const Run& run) {
  const std::vector<float> whole = InSteps(table, 1, state_size, {9}, run);
  CHECK(SameBits(InSteps(table, 3, state_size, {9}, run), whole));
  CHECK(SameBits(InSteps(table, 2, state_size, {1, 9}, run), whole));
  CHECK(SameBits(InSteps(table, 2, state_size, {4, 5, 6, 9}, run), whole));
  return whole;
}

TEST_CASE("a short convolution is that of exact arithmetic, wherever a sequence is cut") {
  constexpr std::int64_t kChannels = 149, kTaps = 3;
  Random random(3);
  const TestRows x(9, 3 * kChannels, random);
  const std::vector<float> weight = RandomFloats(kChannels * kTaps, random);
  const auto run = [&](const OpContext& context, const StateLayer& state, const BatchView& batch,
                       std::int64_t first) {
    std::vector<float> out(static_cast<std::size_t>(batch.num_tokens * kChannels));
    ShortConv(context, x.ReadOnly().Some(first, batch.num_tokens), weight.data(), kTaps, state,
              batch, Rows(out.data(), batch.num_tokens, kChannels));
    return out;
  };
  for (const KernelTable* table : AvailableKernels()) {
    CAPTURE(table->name);
    const std::vector<float> out = CheckCuts(*table, (kTaps - 1) * kChannels, run);
    for (std::int64_t i = 0; i < 9 * kChannels; ++i) {
      const std::int64_t t = i / kChannels, c = i % kChannels;
      double sum = 0.0;
      for (std::int64_t j = std::max<std::int64_t>(0, kTaps - 1 - t); j < kTaps; ++j) {
        const float* row = x.view.Row(t - kTaps + 1 + j);
        sum += static_cast<double>(weight[static_cast<std::size_t>(c * kTaps + j)]) * row[c] *
               row[2 * kChannels + c];
      }
      sum *= x.view.Row(t)[kChannels + c];
      CHECK(std::abs(out[static_cast<std::size_t>(i)] - sum) < 1e-6);
    }
  }
}

TEST_CASE("a delta rule may be cut anywhere, on any number of threads") {
  DeltaRuleView rule;
  rule.num_taps = 4;
  rule.num_key_heads = 2;
  rule.num_value_heads = 6;
  rule.key_dim = 20;
  rule.value_dim = 11;
  rule.eps = 1e-6F;
  Random random(4);
  const std::vector<float> conv = RandomFloats(rule.NumChannels() * rule.num_taps, random);
  const std::vector<float> a(6, -0.7F), dt_bias(6, 0.2F), norm(11, 1.5F);
  rule.conv = conv.data();
  rule.a = a.data();
  rule.dt_bias = dt_bias.data();
  rule.norm = norm.data();
  const TestRows mixed(9, rule.NumChannels(), random), gate(9, rule.NumValues(), random);
  const TestRows beta(9, 6, random), alpha(9, 6, random);
  const auto run = [&](const OpContext& context, const StateLayer& state, const BatchView& batch,
                       std::int64_t first) {
    const std::int64_t n = batch.num_tokens;
    std::vector<float> out(static_cast<std::size_t>(n * rule.NumValues()));
    DeltaRule(context, {rule, mixed.ReadOnly().Some(first, n), gate.ReadOnly().Some(first, n),
                        beta.ReadOnly().Some(first, n), alpha.ReadOnly().Some(first, n), &state,
                        batch, Rows(out.data(), n, rule.NumValues())});
    return out;
  };
  for (const KernelTable* table : AvailableKernels()) {
    CAPTURE(table->name);
    const std::vector<float> out = CheckCuts(*table, rule.StateSize(), run);
    CHECK(std::ranges::all_of(out, [](float y) { return std::isfinite(y); }));
    CHECK(std::ranges::any_of(out, [](float y) { return std::abs(y) > 0.1F; }));
  }
}

TEST_CASE("a selective scan may be cut anywhere, on any number of threads") {
  SelectiveScanView scan;
  scan.num_taps = 4;
  scan.num_groups = 2;
  scan.num_heads = 6;
  scan.head_dim = 11;
  scan.state_dim = 20;
  scan.eps = 1e-6F;
  Random random(6);
  const std::vector<float> conv = RandomFloats(scan.NumChannels() * scan.num_taps, random);
  const std::vector<float> conv_bias = RandomFloats(scan.NumChannels(), random);
  const std::vector<float> a(6, -0.7F), skip(6, 0.3F), dt_bias(6, 0.2F), norm(66, 1.5F);
  scan.conv = conv.data();
  scan.a = a.data();
  scan.skip = skip.data();
  scan.dt_bias = dt_bias.data();
  scan.norm = norm.data();
  const TestRows x(9, scan.NumInputs(), random);
  const auto run = [&](const OpContext& context, const StateLayer& state, const BatchView& batch,
                       std::int64_t first) {
    const std::int64_t n = batch.num_tokens;
    std::vector<float> out(static_cast<std::size_t>(n * scan.NumInner()));
    SelectiveScan(context, {scan, x.ReadOnly().Some(first, n), &state, batch,
                            Rows(out.data(), n, scan.NumInner())});
    return out;
  };
  for (const KernelTable* table : AvailableKernels()) {
    CAPTURE(table->name);
    std::vector<float> with_bias;
    for (const float* bias : {conv_bias.data(), static_cast<const float*>(nullptr)}) {
      scan.conv_bias = bias;
      const std::vector<float> out = CheckCuts(*table, scan.StateSize(), run);
      CHECK(std::ranges::all_of(out, [](float y) { return std::isfinite(y); }));
      CHECK(std::ranges::any_of(out, [](float y) { return std::abs(y) > 0.1F; }));
      if (with_bias.empty()) with_bias = out;
    }
    CHECK(!SameBits(InSteps(*table, 1, scan.StateSize(), {9}, run), with_bias));
  }
}

TEST_CASE("slots of states belong to one sequence, which stands together") {
  const StateLayer state(4, 8);
  const auto spans = [&](const States& states) { return StateSpans(states.View(), state); };
  const std::vector<StateSpan> two = spans({{2, 3}, {-1, 1}, {0, 3}});
  REQUIRE(two.size() == 2);
  CHECK(two[0].before == nullptr);
  CHECK(two[1].before == state.Slot(1));
  CHECK(two[1].after == state.Slot(3));
  CHECK(two[1].first_token == 2);
  CHECK(two[1].num_tokens == 3);
  CHECK(spans({{1, 1}, {1, 1}, {0, 3}}).size() == 2);  // a fork reads what its parent reads
  CHECK(StateSpans({}, state).empty());
  CHECK_THROWS_AS(spans({{1, 1}, {-1, -1}, {0, 0}}), std::invalid_argument);
  CHECK_THROWS_AS(spans({{1, 1}, {-1, 0}, {0, 1}}), std::invalid_argument);
  CHECK_THROWS_AS(spans({{1}, {2}, {2}}), std::invalid_argument);
  CHECK_THROWS_AS(spans({{1}, {4}, {0}}), std::out_of_range);
  CHECK_THROWS_AS(spans({{1}, {-2}, {0}}), std::out_of_range);
  CHECK_THROWS_AS(spans({{1}, {0}, {-1}}), std::out_of_range);
  States apart({1, 1}, {-1, -1}, {0, 1});
  apart.sequences.push_back(0);
  CHECK_THROWS_AS(spans(apart), std::invalid_argument);
  apart.sequences = {2};
  CHECK_THROWS_AS(spans(apart), std::out_of_range);
  BatchView stateless = apart.View();
  stateless.state_sources = nullptr;
  CHECK_THROWS_AS(StateSpans(stateless, state), std::invalid_argument);
}

TEST_CASE("a layer of states has a size that can be addressed") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(StateLayer(3, 17).NumBytes() == 3 * 32 * 4);
  CHECK(StateLayer(3, 17).Slot(2)[16] == 0.0F);
  for (const auto& [slots, size] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                    {1, -1},
                                    {-1, 1},
                                    {kMost, 1},
                                    {1, kMost},
                                    {kMost / 8, kMost / 8}}) {
    CHECK_THROWS_AS(StateLayer(slots, size), std::invalid_argument);
  }
}

}  // namespace
}  // namespace powerinfer::testing
