// Time of a feed-forward block over a prompt: dense, skipping pairs that do not fire, and by the
// choice of each token.
//
//   bench_prefill [TABLE|all] [FORMAT|all] [THREADS] [TOKENS] [HIDDEN] [INTERMEDIATE] [relu|drelu]
//
// The gate's biases make neuron number r fire with probability a * r^-0.9 (at most 1), a such that
// the mean is the density; ranks are scattered over the rows. Processor time, the best of several
// runs.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "sparse/ffn.h"
#include "sparse/prefill.h"

namespace powerinfer {
namespace {

constexpr double kZipf = 0.9;
constexpr int kRepeats = 4;

struct Options {
  std::string table = "all";
  std::string format = "all";
  std::int32_t num_threads = 2;
  std::int64_t num_tokens = 512;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  bool is_drelu = false;
};

class Random {
 public:
  std::uint64_t Bits() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  float Centred() { return static_cast<float>(Bits() >> 40) * 0x1p-23F - 1.0F; }

 private:
  std::uint64_t state_ = 1;
};

/// f16, bf16 or Q4_0 rows of small numbers.
struct Weights {
  std::vector<std::uint8_t> data;
  MatrixView view;

  Weights(Format format, std::int64_t rows, std::int64_t columns, Random& random) {
    const std::int64_t row_bytes = RowBytes(format, columns);
    data.resize(static_cast<std::size_t>(rows * row_bytes));
    view = {format, data.data(), rows, columns, row_bytes};
    for (std::size_t i = 0; i + 8 <= data.size(); i += 8) {
      std::uint64_t bits = random.Bits();
      if (format == Format::kF16) bits = (bits & 0x83FF83FF83FF83FFULL) | 0x2400240024002400ULL;
      if (format == Format::kBF16) bits = (bits & 0x807F807F807F807FULL) | 0x3C003C003C003C00ULL;
      std::memcpy(data.data() + i, &bits, 8);
    }
    if (format != Format::kQ4_0) return;
    const std::uint16_t scale = 0x1C00;
    for (std::size_t i = 0; i < data.size(); i += 18) std::memcpy(data.data() + i, &scale, 2);
  }
};

/// z with P[normal > z] = p.
double UpperQuantile(double p) {
  double low = -9.0;
  double high = 9.0;
  for (int i = 0; i < 60; ++i) {
    const double z = (low + high) / 2.0;
    (std::erfc(z / std::sqrt(2.0)) / 2.0 > p ? low : high) = z;
  }
  return low;
}

/// Firing rates with the given mean, in scattered order.
std::vector<double> Rates(std::int64_t count, double density, Random& random) {
  double low = 0.0;
  double high = 1e6;
  std::vector<double> rates(static_cast<std::size_t>(count));
  for (int i = 0; i < 80; ++i) {
    const double a = (low + high) / 2.0;
    double sum = 0.0;
    for (std::size_t r = 0; r < rates.size(); ++r) {
      rates[r] = std::min(1.0, a * std::pow(static_cast<double>(r + 1), -kZipf));
      sum += rates[r];
    }
    (sum < density * static_cast<double>(count) ? low : high) = a;
  }
  for (std::size_t r = rates.size() - 1; r > 0; --r) {
    std::swap(rates[r], rates[random.Bits() % (r + 1)]);
  }
  return rates;
}

struct Block {
  Weights gate, up, down;
  std::vector<float> norms;
  std::vector<float> bias;
  FFNView view;

  Block(const Options& o, Format format, Random& random)
      : gate(format, o.intermediate_size, o.hidden_size, random),
        up(format, o.intermediate_size, o.hidden_size, random),
        down(format, o.intermediate_size, o.hidden_size, random),
        norms(static_cast<std::size_t>(o.intermediate_size)),
        bias(static_cast<std::size_t>(o.intermediate_size)) {
    std::vector<float> row(static_cast<std::size_t>(o.hidden_size));
    for (std::int64_t i = 0; i < o.intermediate_size; ++i) {
      AvailableKernels().front()->dequantize_row[static_cast<std::size_t>(format)](
          gate.view.Row(i), o.hidden_size, row.data());
      double sum = 0.0;
      for (const float w : row) sum += static_cast<double>(w) * static_cast<double>(w);
      norms[static_cast<std::size_t>(i)] = static_cast<float>(std::sqrt(sum / 3.0));
    }
    view.gate = gate.view;
    view.up = up.view;
    view.down = down.view;
    view.gate_bias = bias.data();
    view.activation.kind = o.is_drelu ? ActivationKind::kDRelu : ActivationKind::kRelu;
    view.is_down_transposed = true;
  }
  void Plant(double density, Random& random) {
    // Half of up fires, whatever its gate.
    const double of_gate = view.activation.kind == ActivationKind::kDRelu ? 2.0 * density : density;
    const std::vector<double> rates =
        Rates(static_cast<std::int64_t>(bias.size()), std::min(0.99, of_gate), random);
    for (std::size_t i = 0; i < bias.size(); ++i) {
      bias[i] = -norms[i] * static_cast<float>(UpperQuantile(rates[i]));
    }
  }
};

/// Processor time over threads: on a shared machine, time spent waiting does not count.
double Now(std::int32_t num_threads) {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return seconds / static_cast<double>(num_threads);
}

void Measure(const Options& o, const KernelTable& kernels, Block& block, double density,
             Random& random) {
  block.Plant(density, random);
  const auto size = static_cast<std::size_t>(o.num_tokens * o.hidden_size);
  std::vector<float> x(size);
  std::vector<float> out(size);
  for (float& value : x) value = random.Centred();
  ThreadTeam team(o.num_threads);
  Workspace workspace;
  const OpContext context{team, workspace, kernels, RowKind::kPrompt};
  const RowsView<const float> rows{x.data(), o.num_tokens, o.hidden_size, o.hidden_size};
  const RowsView<float> result{out.data(), o.num_tokens, o.hidden_size, o.hidden_size};
  double dense = 1e9;
  double skipping = 1e9;
  double chosen = 1e9;
  FFNStats stats;
  const auto time = [&](const auto& run, double* best) {
    const double start = Now(o.num_threads);
    run();
    *best = std::min(*best, Now(o.num_threads) - start);
  };
  for (int i = 0; i < kRepeats; ++i) {
    time([&] { RunFFN(context, rows, block.view, result, nullptr); }, &dense);
    stats = {};
    time([&] { RunPrefillFFN(context, rows, block.view, nullptr, result, &stats, {1.0, 1.0}); },
         &skipping);
    time([&] { RunPrefillFFN(context, rows, block.view, nullptr, result, nullptr); }, &chosen);
  }
  std::printf(
      "%-8s %-5s T %4lld density %.3f  dense %7.1f ms  skipping %7.1f ms (%.2f)  chosen %7.1f ms "
      "(%.2f)\n",
      std::string(kernels.name).c_str(), std::string(InfoOf(block.view.up.format).name).c_str(),
      static_cast<long long>(o.num_tokens),
      static_cast<double>(stats.active) / static_cast<double>(stats.total), 1e3 * dense,
      1e3 * skipping, dense / skipping, 1e3 * chosen, dense / chosen);
  std::fflush(stdout);
}

void Run(const Options& options) {
  Random random;
  for (const Format format : {Format::kF16, Format::kBF16, Format::kQ4_0}) {
    if (options.format != "all" && options.format != InfoOf(format).name) continue;
    Block block(options, format, random);
    for (const KernelTable* table : AvailableKernels()) {
      if (table->name == "portable" && options.table != "portable") continue;
      if (options.table != "all" && options.table != table->name) continue;
      for (const double density : {0.05, 0.1, 0.15, 0.2, 0.3}) {
        Measure(options, *table, block, density, random);
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer

int main(int argc, char** argv) {
  powerinfer::Options options;
  if (argc > 1) options.table = argv[1];
  if (argc > 2) options.format = argv[2];
  if (argc > 3) options.num_threads = std::clamp(std::atoi(argv[3]), 1, 256);
  if (argc > 4) options.num_tokens = std::clamp(std::atoi(argv[4]), 1, 4096);
  if (argc > 5) options.hidden_size = std::clamp(std::atoi(argv[5]) / 256 * 256, 256, 65536);
  if (argc > 6) options.intermediate_size = std::clamp(std::atoi(argv[6]), 16, 262144);
  if (argc > 7) options.is_drelu = std::string(argv[7]) == "drelu";
  powerinfer::Run(options);
}
