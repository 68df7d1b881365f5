// Neuron predictors against scores in double precision, and the block that runs on them.
#include "sparse/predictor.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sparse/ffn.h"
#include "sparse/neuron_sums.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::int64_t kHidden = 224;
constexpr std::int64_t kNeurons = 2113;

struct Options {
  const KernelTable* kernels = &BestKernels();
  bool has_fc1 = false;
  bool has_center = false;
  std::int64_t num_stages = 1;
  Format format = Format::kF32;
  std::int64_t columns = kHidden;  // columns of the stages
  float threshold = 1.0F;

  std::string Name() const {
    return std::string(kernels->name) + " " + std::string(InfoOf(format).name) +
           (has_fc1 ? " fc1" : "") + (has_center ? " center" : "") + " stages " +
           std::to_string(num_stages) + " columns " + std::to_string(columns);
  }
};

struct TestPredictor {
  std::optional<TestMatrix> fc1;
  std::vector<float> center;
  std::deque<TestMatrix> stages;
  std::vector<std::vector<float>> biases;
  PredictorView view;

  TestPredictor(const Options& o, Random& random) : center(RandomFloats(kHidden, random)) {
    if (o.has_fc1) {
      fc1.emplace(Format::kF16, kHidden, kHidden, random);
      view.fc1 = fc1->view;
    }
    if (o.has_center) view.center = center.data();
    view.num_stages = o.num_stages;
    for (std::int64_t i = 0; i < o.num_stages; ++i) {
      const auto at = static_cast<std::size_t>(i);
      stages.emplace_back(o.format, kNeurons, o.columns, random);
      biases.push_back(RandomFloats(kNeurons, random));
      view.stages[at] = {stages[at].view, nullptr, o.threshold};
    }
    // From here on the buffers of the vectors do not move. The last stage has no bias.
    for (std::size_t i = 0; i + 1 < stages.size(); ++i) view.stages[i].bias = biases[i].data();
  }
};

double Dot(const TestMatrix& matrix, std::int64_t row, const std::vector<double>& x) {
  double sum = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += matrix.At(row, static_cast<std::int64_t>(i)) * x[i];
  }
  return sum;
}

/// Distance of a neuron from passing: the least score minus threshold of all stages.
std::vector<double> Margins(const TestPredictor& predictor, const float* x) {
  std::vector<double> input(x, x + kHidden);
  if (predictor.view.center != nullptr) {
    for (std::size_t i = 0; i < input.size(); ++i) input[i] -= double{predictor.center[i]};
  }
  if (predictor.fc1) {
    std::vector<double> hidden;
    for (std::int64_t i = 0; i < predictor.fc1->view.rows; ++i) {
      hidden.push_back(std::max(0.0, Dot(*predictor.fc1, i, input)));
    }
    input = hidden;
  }
  std::vector<double> margins(static_cast<std::size_t>(kNeurons), 1e9);
  for (std::size_t s = 0; s < predictor.stages.size(); ++s) {
    const ScoreStage& stage = predictor.view.stages[s];
    for (std::int64_t i = 0; i < kNeurons; ++i) {
      double score = Dot(predictor.stages[s], i, input) - double{stage.threshold};
      if (stage.bias != nullptr) score += double{stage.bias[i]};
      double& margin = margins[static_cast<std::size_t>(i)];
      margin = std::min(margin, score);
    }
  }
  return margins;
}

struct Lists {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ids;
  PredictorStats stats;

  NeuronIds View() const { return {offsets.data(), ids.data(), std::ssize(offsets) - 1}; }
  bool operator==(const Lists& other) const { return offsets == other.offsets && ids == other.ids; }
};

Lists Predict(const TestPredictor& predictor, RowsView<const float> x, std::int32_t threads,
              const KernelTable& kernels = BestKernels(), RowKind rows = RowKind::kDecode) {
  TestTeam team(threads, kernels, rows);
  Lists lists;
  PredictNeurons(team.context, x, predictor.view, &lists.offsets, &lists.ids, &lists.stats);
  return lists;
}

void CheckToken(const Options& o, const TestPredictor& predictor, const float* x,
                std::span<const std::int32_t> ids, double tolerance) {
  const std::vector<double> margins = Margins(predictor, x);
  const auto [least, most] = std::minmax_element(margins.begin(), margins.end());
  const double allowed = tolerance * (*most - *least);  // scores are sums of rounded products
  std::int64_t passing = 0;
  for (std::int32_t i = 0; i < kNeurons; ++i) {
    const bool is_listed = std::binary_search(ids.begin(), ids.end(), i);
    const double margin = margins[static_cast<std::size_t>(i)];
    passing += is_listed ? 1 : 0;
    REQUIRE_MESSAGE((std::fabs(margin) < allowed || is_listed == (margin > 0.0)), o.Name(),
                    ": neuron ", i, " with margin ", margin,
                    (is_listed ? " passed" : " did not pass"));
  }
  REQUIRE_MESSAGE(passing == std::ssize(ids), o.Name(), ": ids are not ascending or out of range");
}

/// Checks that the neurons that pass for a token are the same alone and in cuts of a call.
void CheckCuts(const Options& o, const TestPredictor& predictor, const TestRows& x,
               const Lists& lists, RowKind rows) {
  const auto check = [&](std::int64_t first, std::int64_t count) {
    const Lists cut =
        Predict(predictor, {x.view.Row(first), count, kHidden, x.view.stride}, 2, *o.kernels, rows);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto expected = lists.View().Of(first + t);
      REQUIRE_MESSAGE(std::ranges::equal(cut.View().Of(t), expected), o.Name(),
                      rows == RowKind::kPrompt ? " prompt" : "", ": token ", first + t,
                      " has other ids in a cut of ", count);
    }
  };
  for (std::int64_t t = 0; t < x.view.rows; t += 7) check(t, 1);
  check(0, x.view.rows / 2);
  check(x.view.rows / 2, x.view.rows - x.view.rows / 2);
}

void CheckPredictor(const Options& o, std::int64_t num_tokens, double tolerance,
                    RowKind rows = RowKind::kDecode) {
  Random random(static_cast<std::uint64_t>(11 + num_tokens));
  const TestPredictor predictor(o, random);
  const TestRows x(num_tokens, kHidden, random);
  const Lists lists = Predict(predictor, x.ReadOnly(), 1, *o.kernels, rows);
  REQUIRE_MESSAGE(lists.stats.predicted == std::ssize(lists.ids), o.Name(),
                  ": wrong number predicted");
  for (const std::int32_t threads : {2, 5}) {
    REQUIRE_MESSAGE(Predict(predictor, x.ReadOnly(), threads, *o.kernels, rows) == lists, o.Name(),
                    ": threads changed ids");
  }
  for (std::int64_t t = 0; t < num_tokens; t += 7) {
    CheckToken(o, predictor, x.view.Row(t), lists.View().Of(t), tolerance);
  }
  CheckCuts(o, predictor, x, lists, rows);
}

/// A small gated block to run on predictions.
struct Block {
  TestMatrix gate, up, down;
  std::vector<float> up_bias;
  FFNView view;

  Block(bool is_transposed, Random& random)
      : gate(Format::kF16, kNeurons, kHidden, random),
        up(Format::kF16, kNeurons, kHidden, random),
        down(Format::kF16, is_transposed ? kNeurons : kHidden, is_transposed ? kHidden : kNeurons,
             random),
        up_bias(RandomFloats(kNeurons, random)) {
    view.gate = gate.view;
    view.up = up.view;
    view.down = down.view;
    view.up_bias = up_bias.data();
    view.activation = {ActivationKind::kRelu, 0.0F};
    view.is_down_transposed = is_transposed;
  }
};

}  // namespace

TEST_CASE("PredictorMatchesDoublePrecision") {
  for (const KernelTable* table : AvailableKernels()) {
    for (int bits = 0; bits < 4; ++bits) {
      for (const std::int64_t num_stages : {std::int64_t{1}, std::int64_t{2}, kMaxScoreStages}) {
        Options o;
        o.kernels = table;
        o.has_fc1 = (bits & 1) != 0;
        o.has_center = (bits & 2) != 0;
        o.num_stages = num_stages;
        for (const std::int64_t num_tokens : {1, 3, 70}) {
          CheckPredictor(o, num_tokens, 1e-5);
          CheckPredictor(o, num_tokens, 1e-5, RowKind::kPrompt);
        }
      }
    }
  }
}

TEST_CASE("PredictorTakesEveryFormatAndPaddedColumns") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : {Format::kF16, Format::kQ8_0, Format::kQ4_0, Format::kQ4_K,
                                Format::kQ4_0Superblock, Format::kQ6_KSuperblock}) {
      Options o;
      o.kernels = table;
      o.format = format;
      o.num_stages = 2;
      o.columns = 256;  // weights beyond the input's 224 numbers multiply zeros
      const double tolerance = InfoOf(format).activations == ActivationForm::kFloat ? 1e-5 : 2e-2;
      CheckPredictor(o, 9, tolerance);
      CheckPredictor(o, 9, tolerance, RowKind::kPrompt);
    }
  }
}

TEST_CASE("PredictedIdsOfATokenDoNotDependOnCuts") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
        Options o;
        o.kernels = table;
        o.format = format;
        o.num_stages = 2;
        o.columns = 256;
        o.has_fc1 = true;
        Random random(7);
        const TestPredictor predictor(o, random);
        const TestRows x(29, kHidden, random);
        const Lists lists = Predict(predictor, x.ReadOnly(), 1, *table, rows);
        REQUIRE_MESSAGE((!lists.ids.empty() && std::ssize(lists.ids) < 29 * kNeurons), o.Name(),
                        ": bad case");
        CheckCuts(o, predictor, x, lists, rows);
      }
    }
  }
}

TEST_CASE("PredictorScoresOfManyNeuronsTakeBoundedMemory") {
  constexpr std::int64_t kMany = std::int64_t{1} << 17;
  constexpr std::int64_t kTokens = 200;
  Random random(4);
  const TestMatrix matrix(Format::kF32, kMany, 8, random);
  const TestRows x(kTokens, 8, random);
  PredictorView predictor;
  predictor.num_stages = 1;
  predictor.stages[0] = {matrix.view, nullptr, 1.5F};
  const auto predict = [&](std::int64_t first, std::int64_t count, Lists* lists) {
    TestTeam team(2, BestKernels(), RowKind::kPrompt);
    const RowsView<const float> some{x.view.Row(first), count, 8, x.view.stride};
    PredictNeurons(team.context, some, predictor, &lists->offsets, &lists->ids, &lists->stats);
    return team.workspace.Capacity();
  };
  Lists lists;
  REQUIRE_MESSAGE(predict(0, kTokens, &lists) < std::size_t{96} << 20, "all tokens at once");
  REQUIRE_MESSAGE((!lists.ids.empty() && std::ssize(lists.ids) < kTokens * kMany / 2), "bad case");
  for (const std::int64_t token : {0, 63, 64, 199}) {
    Lists alone;
    predict(token, 1, &alone);
    REQUIRE_MESSAGE(std::ranges::equal(alone.View().Of(0), lists.View().Of(token)),
                    "another block, other ids");
  }
}

TEST_CASE("PredictorCountsBytes") {
  Options o;
  o.has_fc1 = true;
  o.num_stages = 2;
  Random random(1);
  TestPredictor predictor(o, random);
  const TestRows x(1, kHidden, random);
  for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
    predictor.view.num_stages = 1;
    const Lists first = Predict(predictor, x.ReadOnly(), 2, BestKernels(), rows);
    predictor.view.num_stages = 2;
    const Lists both = Predict(predictor, x.ReadOnly(), 2, BestKernels(), rows);
    const std::int64_t dense = predictor.view.fc1.NumBytes() + predictor.stages[0].view.NumBytes();
    REQUIRE_MESSAGE(first.stats.bytes_read == dense, "wrong bytes of a dense predictor");
    REQUIRE_MESSAGE(
        both.stats.bytes_read == dense + std::ssize(first.ids) * predictor.stages[1].view.row_bytes,
        "a later stage must read the rows of survivors only");
    REQUIRE_MESSAGE(both.stats.seconds > 0.0, "no time was counted");
  }
}

TEST_CASE("PredictorLetsNaNAndEverythingAboveMinusInfinityPass") {
  for (const bool has_fc1 : {false, true}) {
    Options o;
    o.has_fc1 = has_fc1;
    o.num_stages = 2;
    o.threshold = 1e9F;
    Random random(2);
    TestPredictor predictor(o, random);
    TestRows x(2, kHidden, random);
    for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
      REQUIRE_MESSAGE(Predict(predictor, x.ReadOnly(), 2, BestKernels(), rows).ids.empty(),
                      "nothing reaches the threshold");
    }
    x.view.Row(1)[5] = std::numeric_limits<float>::quiet_NaN();
    for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
      const Lists lists = Predict(predictor, x.ReadOnly(), 2, BestKernels(), rows);
      REQUIRE_MESSAGE((lists.offsets == std::vector<std::int64_t>{0, 0, kNeurons}),
                      "NaN was skipped");
    }
    for (std::size_t i = 0; i < 2; ++i) {
      predictor.view.stages[i].threshold = -std::numeric_limits<float>::infinity();
    }
    REQUIRE_MESSAGE(std::ssize(Predict(predictor, x.ReadOnly(), 2).ids) == 2 * kNeurons,
                    "a threshold of minus infinity lets everything pass");
  }
}

TEST_CASE("PredictedFFNEqualsTheListedOneBitForBit") {
  for (const bool is_transposed : {false, true}) {
    for (const std::int64_t num_tokens : {1, 16, 21}) {
      Options o;
      o.has_fc1 = true;
      o.num_stages = 2;
      o.threshold = 0.2F;
      Random random(3);
      const TestPredictor predictor(o, random);
      const Block block(is_transposed, random);
      const TestRows x(num_tokens, kHidden, random);
      const TestRows predictor_input(num_tokens, kHidden, random);
      const RowKind rows = num_tokens == 21 ? RowKind::kPrompt : RowKind::kDecode;
      const Lists lists = Predict(predictor, predictor_input.ReadOnly(), 1, BestKernels(), rows);
      REQUIRE_MESSAGE((!lists.ids.empty() && std::ssize(lists.ids) < num_tokens * kNeurons / 2),
                      "bad case");
      for (const std::int32_t threads : {1, 2, 5}) {
        TestTeam team(threads, BestKernels(), rows);
        TestRows listed(num_tokens, kHidden);
        TestRows predicted(num_tokens, kHidden);
        FFNStats a, b;
        RunListedFFN(team.context, x.ReadOnly(), block.view, lists.View(), listed.view, &a);
        RunPredictedFFN(team.context, x.ReadOnly(), block.view, predictor.view,
                        predictor_input.ReadOnly(), predicted.view, &b);
        REQUIRE_MESSAGE(SameBits(listed.data, predicted.data),
                        "predicted and listed blocks differ");
        REQUIRE_MESSAGE((a.active == b.active && a.predicted == b.predicted && a.total == b.total &&
                         a.bytes_read == b.bytes_read),
                        "predicted and listed blocks count differently");
        REQUIRE_MESSAGE(
            (a.predictor_bytes == 0 && b.predictor_bytes >= predictor.view.fc1.NumBytes()),
            "wrong bytes of the predictor");
        REQUIRE_MESSAGE((b.active > 0 && b.active < b.predicted),
                        "listed neurons that do not fire are skipped");
      }
    }
  }
}

TEST_CASE("NeuronRangesCoverEveryNeuronOnce") {
  for (const std::int64_t size : {1, 2, 63, 64, 100, 767, 2047, 2048, 11008, 14336}) {
    const NeuronRanges ranges(size);
    REQUIRE_MESSAGE((ranges.Begin(0) == 0 && ranges.End(ranges.Count() - 1) == size), "ends");
    std::int64_t largest = 0;
    for (std::int64_t range = 0; range < ranges.Count(); ++range) {
      REQUIRE_MESSAGE(ranges.Size(range) > 0, "an empty range of ", size);
      largest = std::max(largest, ranges.Size(range));
    }
    REQUIRE_MESSAGE(largest == ranges.MaxSize(), "longest range");
  }
}

}  // namespace powerinfer::testing
