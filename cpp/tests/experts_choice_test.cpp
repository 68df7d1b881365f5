// Mixtures of experts over neurons that lists or predictors choose.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "sparse/experts.h"
#include "tests/experts_testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::int64_t kHidden = 64;
constexpr std::int64_t kRank = 48;

struct Ids {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;

  NeuronIds View() const { return {offsets.data(), ids.data(), std::ssize(offsets) - 1}; }
};

/// A third of all neurons, none for token 1, all for token 2.
Ids RandomIds(std::int64_t num_tokens, std::int64_t num_neurons, Random& random) {
  Ids lists;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int32_t i = 0; i < num_neurons; ++i) {
      const bool is_random = random.Uniform(0.0F, 3.0F) < 1.0F;
      if (t == 2 || (t != 1 && is_random)) lists.ids.push_back(i);
    }
    lists.offsets.push_back(std::ssize(lists.ids));
  }
  return lists;
}

ExpertsOptions Options(const KernelTable* table, bool is_transposed) {
  ExpertsOptions o;
  o.ffn.kernels = table;
  o.ffn.hidden_size = kHidden;
  o.ffn.intermediate_size = 200;
  o.ffn.is_transposed = is_transposed;
  return o;
}

/// The output and the counts, the same for every number of threads.
struct Result {
  std::vector<float> out;
  FFNStats stats;
};

Result RunChoice(const ExpertsOptions& o, const ExpertsBlock& block, const TestRows& x,
                 RowKind rows, const NeuronChoice& choice) {
  Result result;
  for (const std::int32_t threads : {1, 3}) {
    TestTeam team(threads, *o.ffn.kernels, rows);
    TestRows out(x.view.rows, kHidden);
    result.stats = {};
    RunExperts(team.context, x.ReadOnly(), x.ReadOnly(), block.view, choice, out.view,
               &result.stats);
    REQUIRE_MESSAGE((threads == 1 || SameBits(result.out, out.data)), o.Name(),
                    ": threads changed bits");
    result.out = out.data;
  }
  return result;
}

void CheckListed(const ExpertsOptions& o, std::int64_t num_tokens, RowKind rows) {
  Random random(static_cast<std::uint64_t>(num_tokens));
  const ExpertsBlock block(o, random);
  const TestRows x(num_tokens, kHidden, random);
  const Ids lists = RandomIds(num_tokens, o.ffn.NumNeurons(), random);
  const NeuronIds ids = lists.View();
  const Result result = RunChoice(o, block, x, rows, {nullptr, {}, &ids});
  std::int64_t active = 0;
  std::int64_t predicted = 0;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const auto listed = ids.Of(t);
    const FFNResult expected =
        ExpertsReference(block, x.view.Row(t), x.view.Row(t), [&](std::int64_t i) {
          return std::binary_search(listed.begin(), listed.end(), static_cast<std::int32_t>(i));
        });
    active += expected.active;
    CheckRow(o.ffn, rows, expected, result.out.data() + t * x.view.stride,
             "listed neurons of token " + std::to_string(t));
    const Routes routes = ReferenceRoutes(block, x.view.Row(t));
    predicted += std::ranges::count_if(listed, [&](std::int32_t id) {
      return std::ranges::binary_search(routes.ids, id / o.ffn.intermediate_size);
    });
  }
  REQUIRE_MESSAGE(result.stats.active == active, o.Name(), ": wrong number of active neurons");
  REQUIRE_MESSAGE(result.stats.predicted == predicted, o.Name(), ": wrong number listed");
  REQUIRE(result.stats.total == num_tokens * o.ffn.NumNeurons());
}

/// Two stages that see the input, a hidden layer, or the hidden layers of their experts.
enum class Layers { kNone, kShared, kOwn };

struct TestPredictor {
  std::optional<TestMatrix> fc1;
  TestMatrix first, second;
  std::vector<float> center, bias;
  PredictorView view;

  TestPredictor(const ExpertsOptions& o, Layers layers, Format format, Random& random)
      : first(format, o.ffn.NumNeurons(), Columns(layers, format), random),
        second(Format::kF16, o.ffn.NumNeurons(), Columns(layers, Format::kF16), random),
        center(RandomFloats(kHidden, random)),
        bias(RandomFloats(o.ffn.NumNeurons(), random)) {
    if (layers == Layers::kOwn) view.num_experts = o.ffn.num_experts;
    if (layers != Layers::kNone) {
      fc1.emplace(Format::kF16, view.num_experts * kRank, kHidden, random);
      view.fc1 = fc1->view;
    }
    view.center = center.data();
    view.num_stages = 2;
    view.stages[0] = {first.view, bias.data(), -0.5F};
    view.stages[1] = {second.view, nullptr, -1.0F};
  }
  static std::int64_t Columns(Layers layers, Format format) {
    if (format == Format::kLowbit2) return kPredictorPadding;
    return layers == Layers::kNone ? kHidden : kRank;
  }
};

/// The input of the stages for a neuron of an expert, in double precision.
std::vector<double> StageInput(const TestPredictor& predictor, std::int64_t expert,
                               const float* x) {
  std::vector<double> input;
  for (std::size_t i = 0; i < predictor.center.size(); ++i) {
    input.push_back(double{x[i]} - double{predictor.center[i]});
  }
  if (!predictor.fc1) return input;
  const std::int64_t first = predictor.view.num_experts > 1 ? expert * kRank : 0;
  std::vector<double> hidden;
  for (std::int64_t row = first; row < first + kRank; ++row) {
    double sum = 0.0;
    for (std::size_t i = 0; i < input.size(); ++i) {
      sum += predictor.fc1->At(row, static_cast<std::int64_t>(i)) * input[i];
    }
    hidden.push_back(std::max(sum, 0.0));
  }
  return hidden;
}

/// Compares ids with scores in double precision, but for scores close to a threshold.
void CheckIds(const ExpertsOptions& o, const TestPredictor& predictor, const TestRows& x,
              const Ids& lists) {
  const auto dot = [](const TestMatrix& matrix, std::int64_t row, const std::vector<double>& in) {
    double sum = 0.0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      sum += matrix.At(row, static_cast<std::int64_t>(i)) * in[i];
    }
    return sum;
  };
  for (std::int64_t t = 0; t < x.view.rows; ++t) {
    const auto listed = lists.View().Of(t);
    for (std::int32_t i = 0; i < o.ffn.NumNeurons(); ++i) {
      const std::vector<double> in =
          StageInput(predictor, i / o.ffn.intermediate_size, x.view.Row(t));
      const double bias = double{predictor.bias[static_cast<std::size_t>(i)]};
      const double margin =
          std::min(dot(predictor.first, i, in) + bias + 0.5, dot(predictor.second, i, in) + 1.0);
      if (std::fabs(margin) < 0.05) continue;
      REQUIRE_MESSAGE(std::ranges::binary_search(listed, i) == (margin > 0.0), o.Name(),
                      ": neuron ", i, " of token ", t);
    }
  }
}

/// Predicting in the block equals listing the ids that PredictNeurons finds.
void CheckPredicted(const ExpertsOptions& o, Layers layers, Format format, RowKind rows,
                    std::int64_t num_tokens) {
  Random random(11);
  const ExpertsBlock block(o, random);
  const TestPredictor predictor(o, layers, format, random);
  const TestRows x(num_tokens, kHidden, random);
  const TestRows input(num_tokens, kHidden, random);
  TestTeam team(2, *o.ffn.kernels, rows);
  Ids lists;
  PredictorStats found;
  PredictNeurons(team.context, input.ReadOnly(), predictor.view, &lists.offsets, &lists.ids,
                 &found);
  REQUIRE(found.predicted == std::ssize(lists.ids));
  if (format == Format::kF16 && num_tokens < 20) CheckIds(o, predictor, input, lists);
  const NeuronIds ids = lists.View();
  const Result listed = RunChoice(o, block, x, rows, {nullptr, {}, &ids});
  const Result predicted =
      RunChoice(o, block, x, rows, {&predictor.view, input.ReadOnly(), nullptr});
  REQUIRE_MESSAGE(SameBits(listed.out, predicted.out), o.Name(), ": predicted others");
  REQUIRE(listed.stats.predicted == predicted.stats.predicted);
  REQUIRE(listed.stats.active == predicted.stats.active);
  REQUIRE(listed.stats.active > 0);
  REQUIRE(listed.stats.bytes_read == predicted.stats.bytes_read);
}

}  // namespace

TEST_CASE("ExpertsOfListedNeurons") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const bool is_transposed : {false, true}) {
      for (const ActivationKind kind :
           {ActivationKind::kRelu, ActivationKind::kDRelu, ActivationKind::kClampedSwiGlu}) {
        ExpertsOptions o = Options(table, is_transposed);
        o.ffn.kind = kind;
        for (const std::int64_t num_tokens : {1, 7, 40}) {
          CheckListed(o, num_tokens, RowKind::kDecode);
          CheckListed(o, num_tokens, RowKind::kPrompt);
        }
      }
    }
  }
}

TEST_CASE("ExpertsOfPredictedNeurons") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Layers layers : {Layers::kNone, Layers::kShared, Layers::kOwn}) {
      for (const Format format : {Format::kF16, Format::kLowbit2}) {
        for (const bool is_transposed : {false, true}) {
          for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
            for (const std::int64_t num_tokens : {1, 7, 40}) {
              CheckPredicted(Options(table, is_transposed), layers, format, rows, num_tokens);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("ExpertsReadPredictorsOfChosenExperts") {
  const ExpertsOptions o = Options(&BestKernels(), true);
  Random random(2);
  const ExpertsBlock block(o, random);
  TestPredictor predictor(o, Layers::kOwn, Format::kF16, random);
  predictor.view.num_stages = 1;
  const TestRows x(1, kHidden, random);
  const Result result =
      RunChoice(o, block, x, RowKind::kDecode, {&predictor.view, x.ReadOnly(), nullptr});
  const PredictorView& view = predictor.view;
  REQUIRE(result.stats.predictor_bytes ==
          o.num_used * (kRank * view.fc1.row_bytes +
                        o.ffn.intermediate_size * view.stages[0].matrix.row_bytes));
}

}  // namespace powerinfer::testing
