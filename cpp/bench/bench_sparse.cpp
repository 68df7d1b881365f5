// Speed of one feed-forward block of a decode step, and of plain reads and gathers for comparison.
//
//   bench_sparse [FORMAT] [HIDDEN] [INTERMEDIATE] [DENSITY] [THREADS] [LAYERS] [RANK] [TOKENS]
//                [NAME] [EXPERTS] [USED]
//
// Each of LAYERS blocks has weights of its own, so that none is in a cache when its turn comes.
// "gather" touches the rows of the same random neurons, a line at a time; "read" all rows. A
// predictor of rank RANK in the same format reads its bytes; which neurons it lets pass is planted
// in its biases. NAME: only measurements whose name holds it. EXPERTS: that many of INTERMEDIATE
// neurons each, of which a router gives a token to USED; then only "exact ffn" and "dense ffn"
// count what a token reads.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/page_memory.h"
#include "sparse/experts.h"
#include "sparse/ffn.h"
#include "sparse/neuron_sums.h"

namespace powerinfer {
namespace {

struct Options {
  Format format = Format::kF16;
  std::int64_t hidden = 4096;
  std::int64_t neurons = 11008;
  double density = 0.10;
  std::int32_t threads = 2;
  std::int64_t layers = 6;
  std::int64_t rank = 1024;
  std::int64_t tokens = 1;
  std::string name;
  std::int64_t experts = 0;
  std::int64_t used = 4;

  std::int64_t AllNeurons() const { return neurons * std::max<std::int64_t>(1, experts); }
};

/// Small weights: bytes 0x01 give tiny finite halves in every format.
MatrixView Fill(Arena& arena, std::vector<ArenaBlock>& blocks, Format format, std::int64_t rows,
                std::int64_t columns) {
  MatrixView view{format, nullptr, rows, columns, RowBytes(format, columns)};
  blocks.push_back(arena.Allocate(static_cast<std::size_t>(view.NumBytes())));
  std::memset(blocks.back().data, 0x21, static_cast<std::size_t>(view.NumBytes()));
  view.data = blocks.back().data;
  return view;
}

/// The neurons that fire in one pass: lists for the listed path, biases for the others.
struct Firing {
  std::vector<float> gate_bias, score_bias, router_bias;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;

  explicit Firing(const Options& o) {
    std::vector<char> fires(static_cast<std::size_t>(o.AllNeurons()));
    for (std::int64_t t = 0; t < o.tokens; ++t) {
      for (std::int64_t i = 0; i < o.AllNeurons(); ++i) {
        if (std::rand() > o.density * RAND_MAX) continue;
        ids.push_back(static_cast<std::int32_t>(i));
        fires[static_cast<std::size_t>(i)] = 1;
      }
      offsets.push_back(std::ssize(ids));
    }
    for (const char fire : fires) {
      score_bias.push_back(fire ? 1e30F : -1e30F);
      gate_bias.push_back(fire ? 1e10F : -1e10F);
    }
    for (std::int64_t e = 0; e < o.experts; ++e) {
      router_bias.push_back(static_cast<float>(std::rand() % 1000));
    }
  }
};

constexpr std::size_t kPasses = 15;

struct Layer {
  FFNView ffn;
  PredictorView predictor;
  std::vector<Firing> passes;  // other neurons in every pass: earlier ones may be in a cache
  const Firing* firing = nullptr;

  void Choose(std::size_t pass) {
    firing = &passes[pass];
    ffn.gate_bias = firing->gate_bias.data();
    ffn.router.bias = firing->router_bias.data();
    predictor.stages[0].bias = firing->score_bias.data();
  }
  NeuronIds Ids() const {
    return {firing->offsets.data(), firing->ids.data(), std::ssize(firing->offsets) - 1};
  }
};

struct Model {
  Arena arena;
  std::vector<ArenaBlock> blocks;
  std::vector<Layer> layers;

  explicit Model(const Options& o) : layers(static_cast<std::size_t>(o.layers)) {
    std::srand(1);
    for (Layer& layer : layers) {
      layer.ffn.gate = Fill(arena, blocks, o.format, o.AllNeurons(), o.hidden);
      layer.ffn.up = Fill(arena, blocks, o.format, o.AllNeurons(), o.hidden);
      layer.ffn.down = Fill(arena, blocks, o.format, o.AllNeurons(), o.hidden);
      layer.ffn.activation = {ActivationKind::kRelu, 0.0F};
      layer.ffn.is_down_transposed = true;
      if (o.experts > 0) {
        layer.ffn.router.matrix = Fill(arena, blocks, Format::kF32, o.experts, o.hidden);
        layer.ffn.router.num_used = o.used;
      }
      layer.predictor.fc1 = Fill(arena, blocks, o.format, o.rank, o.hidden);
      layer.predictor.stages[0].matrix = Fill(arena, blocks, o.format, o.AllNeurons(), o.rank);
      layer.predictor.num_stages = 1;
      for (std::size_t pass = 0; pass < kPasses; ++pass) layer.passes.emplace_back(o);
    }
  }
};

std::uint64_t Touch(const MatrixView& matrix, std::int64_t row) {
  const std::uint8_t* data = matrix.Row(row);
  std::uint64_t sums[8] = {};
  std::int64_t i = 0;
  for (; i + 64 <= matrix.row_bytes; i += 64) {
    for (std::int64_t j = 0; j < 8; ++j) {
      std::uint64_t word;
      std::memcpy(&word, data + i + 8 * j, 8);
      sums[j] += word;
    }
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

std::atomic<std::uint64_t> sink;

/// With one thread its processor time, so that waiting on a shared machine does not count.
double Now(std::int32_t num_threads) {
  timespec now{};
  clock_gettime(num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

using Body = std::function<std::int64_t(Layer&)>;  // returns bytes

/// Best and median of passes over all layers.
void Measure(const char* name, Model& model, const Options& o, const Body& body) {
  if (std::string(name).find(o.name) == std::string::npos) return;
  std::vector<double> seconds;
  std::int64_t bytes = 0;
  for (std::size_t pass = 0; pass < kPasses; ++pass) {
    bytes = 0;
    for (Layer& layer : model.layers) layer.Choose(pass);
    const double start = Now(o.threads);
    for (Layer& layer : model.layers) bytes += body(layer);
    seconds.push_back(Now(o.threads) - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const double layers = static_cast<double>(model.layers.size());
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  std::printf("%-28s %8.3f ms best %8.3f median, %6.1f MB, %5.1f GB/s best %5.1f median\n", name,
              seconds[0] / layers * 1e3, seconds[7] / layers * 1e3,
              static_cast<double>(bytes) / layers * 1e-6, gigabytes / seconds[0],
              gigabytes / seconds[7]);
}

void Run(const Options& o) {
  Model model(o);
  ThreadTeam team(o.threads);
  Workspace workspace;
  const OpContext context{team, workspace, *AvailableKernels().front()};
  std::vector<float> x(static_cast<std::size_t>(o.tokens * o.hidden), 0.01F);
  std::vector<float> y(x.size());
  const RowsView<const float> input{x.data(), o.tokens, o.hidden, o.hidden};
  const RowsView<float> output{y.data(), o.tokens, o.hidden, o.hidden};
  const NeuronRanges ranges(o.AllNeurons());
  Measure("read of a matrix", model, o, [&](Layer& layer) {
    const auto run = [&](std::int64_t range, std::int32_t) {
      std::uint64_t sum = 0;
      for (std::int64_t i = ranges.Begin(range); i < ranges.End(range); ++i) {
        sum += Touch(layer.ffn.gate, i);
      }
      sink += sum;
    };
    team.ParallelFor(ranges.Count(), std::ref(run));
    return layer.ffn.gate.NumBytes();
  });
  Measure("gather of rows", model, o, [&](Layer& layer) {
    const auto run = [&](std::int64_t range, std::int32_t) {
      std::uint64_t sum = 0;
      const auto ids = layer.Ids().Of(0);
      const auto first = std::lower_bound(ids.begin(), ids.end(), ranges.Begin(range));
      const auto last = std::lower_bound(first, ids.end(), ranges.End(range));
      for (const MatrixView* m : {&layer.ffn.gate, &layer.ffn.up, &layer.ffn.down}) {
        for (auto id = first; id != last; ++id) sum += Touch(*m, *id);
      }
      sink += sum;
    };
    team.ParallelFor(ranges.Count(), std::ref(run));
    return layer.firing->offsets[1] * 3 * layer.ffn.gate.row_bytes;
  });
  Measure("ffn over listed neurons", model, o, [&](Layer& layer) {
    FFNStats stats;
    RunListedFFN(context, input, layer.ffn, layer.Ids(), output, &stats);
    return stats.bytes_read;
  });
  Measure("predictor alone", model, o, [&](Layer& layer) {
    PredictorStats stats;
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> ids;
    PredictNeurons(context, input, layer.predictor, &offsets, &ids, &stats);
    return stats.bytes_read;
  });
  Measure("predicted ffn, two calls", model, o, [&](Layer& layer) {
    PredictorStats stats;
    FFNStats ffn_stats;
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> ids;
    PredictNeurons(context, input, layer.predictor, &offsets, &ids, &stats);
    RunListedFFN(context, input, layer.ffn, {offsets.data(), ids.data(), o.tokens}, output,
                 &ffn_stats);
    return stats.bytes_read + ffn_stats.bytes_read;
  });
  double predictor_s = 0.0;
  Measure("predicted ffn", model, o, [&](Layer& layer) {
    FFNStats stats;
    RunPredictedFFN(context, input, layer.ffn, layer.predictor, input, output, &stats);
    predictor_s += stats.predictor_s;
    return stats.bytes_read + stats.predictor_bytes;
  });
  if (predictor_s > 0.0)
    std::printf("  of which in the predictor %8.3f ms mean\n",
                predictor_s / static_cast<double>(kPasses * model.layers.size()) * 1e3);
  for (const bool is_exact : {true, false}) {
    Measure(is_exact ? "exact ffn" : "dense ffn", model, o, [&](Layer& layer) {
      FFNStats stats;
      layer.ffn.is_exact_sparse = is_exact;
      if (o.experts > 0) {
        RunExperts(context, input, input, layer.ffn, {}, output, &stats);
      } else {
        RunFFN(context, input, layer.ffn, output, &stats);
      }
      return stats.bytes_read;
    });
  }
}

}  // namespace
}  // namespace powerinfer

int main(int argc, char** argv) {
  powerinfer::Options o;
  for (std::size_t i = 0; argc > 1 && i < powerinfer::kFormatInfo.size(); ++i) {
    if (powerinfer::kFormatInfo[i].name == argv[1]) o.format = static_cast<powerinfer::Format>(i);
  }
  if (argc > 2) o.hidden = std::atoll(argv[2]);
  if (argc > 3) o.neurons = std::atoll(argv[3]);
  if (argc > 4) o.density = std::atof(argv[4]);
  if (argc > 5) o.threads = std::atoi(argv[5]);
  if (argc > 6) o.layers = std::atoll(argv[6]);
  if (argc > 7) o.rank = std::atoll(argv[7]);
  if (argc > 8) o.tokens = std::atoll(argv[8]);
  if (argc > 9) o.name = argv[9];
  if (argc > 10) o.experts = std::atoll(argv[10]);
  if (argc > 11) o.used = std::atoll(argv[11]);
  powerinfer::Run(o);
}
