// Speed of the matrix-vector kernels, alone: GB/s and weights/s per table, format and thread count.
//
//   bench_kernels [TABLE|all] [FORMAT|all] [MEGABYTES] [THREADS] [TOKENS] [dot|axpy|axpy2|decode]
//   [AHEAD] [COLUMNS]
//
// Each thread works through its own rows of COLUMNS weights (4096, or fewer), MEGABYTES in all
// (0.25: in the cache; 1000 and more: from memory); processor time, the best of several passes.
// "read" adds up the same bytes. TOKENS may be a list, 1,2,4,8,16,32: then each count is also given
// as a multiple of the time of the first.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/read_way.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kMaxColumns = 4096;

struct Options {
  std::string table = "all";
  std::string format = "all";
  double megabytes = 0.25;
  std::int64_t num_threads = 1;
  std::vector<std::int64_t> token_counts = {1};
  std::int64_t num_tokens = 1;  ///< the count measured now
  std::string operation = "dot";
  std::int64_t ahead = kDefaultReadWays.of_kind[0].ahead;
  std::int64_t columns = kMaxColumns;  ///< of a row
};

/// One token's activations, aligned as a workspace aligns them.
template <typename T>
struct alignas(64) Activations {
  T values[kMaxColumns];
  explicit Activations(T value) { std::fill_n(values, kMaxColumns, value); }
};

/// Input of every measurement: activations, and bytes that serve as rows of any format.
struct Data {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales = std::vector<float>(kMaxColumns / 32, 0.1F);
  std::vector<float> sums = std::vector<float>(kMaxColumns / 32, 0.3F);
  std::vector<std::int32_t> half_sums = std::vector<std::int32_t>(kMaxColumns / 16, 3);
  std::vector<std::uint64_t> sign_bits = std::vector<std::uint64_t>(kMaxColumns / 64, 0x5A5A);
  std::vector<Activations<float>> all_values;
  std::vector<Activations<std::int8_t>> all_quantized;
  std::vector<ActivationRow> x;

  explicit Data(const Options& options) : bytes(static_cast<std::size_t>(options.megabytes * 1e6)) {
    std::memset(bytes.data(), 0x21, bytes.size());  // finite halves, no slow subnormals
    const QuantizedVector vector{nullptr,     nullptr,         scales.data(),
                                 sums.data(), options.columns, half_sums.data()};
    // Each token has activations of its own: they take the same room in the caches as in a model.
    const std::int64_t most =
        *std::max_element(options.token_counts.begin(), options.token_counts.end());
    all_values.assign(static_cast<std::size_t>(most), Activations<float>(0.5F));
    all_quantized.assign(static_cast<std::size_t>(most), Activations<std::int8_t>(3));
    for (std::size_t t = 0; t < all_values.size(); ++t) {
      QuantizedVector own = vector;
      own.values = own.permuted = all_quantized[t].values;
      x.push_back({all_values[t].values, own, sign_bits.data(), 0.5F});
    }
  }
};

float ReadAll(const std::uint8_t* bytes, std::int64_t num_bytes) {
  std::uint64_t sums[8] = {};
  for (std::int64_t i = 0; i + 64 <= num_bytes; i += 64) {
    for (std::int64_t j = 0; j < 8; ++j) {
      std::uint64_t word;
      std::memcpy(&word, bytes + i + 8 * j, 8);
      sums[j] += word;
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return static_cast<float>(sum);
}

/// One thread's share: `num_rows` rows at `rows`.
void Work(const Options& options, const KernelTable* table, std::int32_t format, const Data& data,
          const std::uint8_t* rows, std::int64_t num_rows, std::int64_t row_bytes) {
  std::vector<float> out(
      static_cast<std::size_t>(std::max(num_rows, kMaxColumns) * options.num_tokens));
  if (table == nullptr) {
    out[0] = ReadAll(rows, num_rows * row_bytes);
  } else if (options.operation == "dot") {
    table->dot_rows[format](rows, row_bytes, num_rows, options.columns, data.x.data(),
                            options.num_tokens, out.data(), num_rows, options.ahead);
  } else if (options.operation == "axpy2") {
    for (std::int64_t r = 0; r + 1 < num_rows; r += 2) {
      const std::uint8_t* row = rows + r * row_bytes;
      for (std::int64_t c = 0; c + 512 <= options.columns; c += 512)
        for (std::int64_t t = 0; t < options.num_tokens; ++t)
          table->axpy_two_rows[format](row + c * row_bytes / options.columns,
                                       row + row_bytes + c * row_bytes / options.columns, 512, 0.1F,
                                       0.2F, out.data() + t * options.columns + c);
    }
  } else {
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const std::uint8_t* row = rows + r * row_bytes;
      if (options.operation == "axpy")
        table->axpy_row[format](row, options.columns, 0.1F, out.data());
      if (options.operation == "decode")
        table->dequantize_row[format](row, options.columns, out.data());
    }
  }
  static std::atomic<float> sink;  // keeps the work from being optimized away
  sink.store(out[0], std::memory_order_relaxed);
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Processor time of the slowest thread: on a shared machine, time spent waiting does not count.
double Seconds(const Options& options, const KernelTable* table, std::int32_t format,
               const Data& data, std::int64_t num_rows, std::int64_t row_bytes,
               std::int64_t repeats) {
  std::vector<double> seconds(static_cast<std::size_t>(options.num_threads));
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < options.num_threads; ++t) {
    threads.emplace_back([&, t] {
      const double start = ThreadSeconds();
      for (std::int64_t i = 0; i < repeats; ++i) {
        Work(options, table, format, data, data.bytes.data() + t * num_rows * row_bytes, num_rows,
             row_bytes);
      }
      seconds[static_cast<std::size_t>(t)] = ThreadSeconds() - start;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

/// Prints one line and returns the seconds of a pass; `first`: those of the first count, or 0.
double Measure(const Options& options, const KernelTable* table, std::int32_t format,
               const Data& data, double first) {
  const std::int64_t row_bytes = RowBytes(static_cast<Format>(format), options.columns);
  const auto size = static_cast<std::int64_t>(data.bytes.size());
  const std::int64_t num_rows = std::max<std::int64_t>(1, size / row_bytes / options.num_threads);
  const double all_bytes = static_cast<double>(num_rows * options.num_threads * row_bytes);
  // Passes of about 10 ms at 20 GB/s, so that starting threads does not count.
  const std::int64_t repeats =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(2e8 / all_bytes));
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    best = std::min(best, Seconds(options, table, format, data, num_rows, row_bytes, repeats));
  }
  const double passes = static_cast<double>(repeats);
  const double weights = static_cast<double>(num_rows * options.num_threads * options.columns);
  std::printf("%-9s %-16s %3d tokens %6.1f GB/s %6.1f Gweights/s",
              table == nullptr ? "read" : std::string(table->name).c_str(),
              std::string(kFormatInfo[static_cast<std::size_t>(format)].name).c_str(),
              static_cast<int>(options.num_tokens), all_bytes * passes / best * 1e-9,
              weights * passes / best * 1e-9);
  const double seconds = best / passes;
  if (first > 0.0) std::printf(" %6.2f x", seconds / first);
  std::printf("\n");
  return seconds;
}

void MeasureCounts(Options options, const KernelTable* table, std::int32_t format,
                   const Data& data) {
  double first = 0.0;
  for (const std::int64_t count : options.token_counts) {
    options.num_tokens = count;
    const double seconds = Measure(options, table, format, data, first);
    if (first == 0.0) first = seconds;
  }
}

std::vector<std::int64_t> ParseCounts(const char* text) {
  std::vector<std::int64_t> counts;
  for (const char* at = text; at != nullptr; at = std::strchr(at, ',')) {
    if (*at == ',') ++at;
    const std::int64_t count = std::atoi(at);
    if (count < 1 || count > kMaxDotTokens) {
      std::fprintf(stderr, "error: token counts must be 1 to %d\n",
                   static_cast<int>(kMaxDotTokens));
      std::exit(2);
    }
    counts.push_back(count);
  }
  return counts;
}

void Run(const Options& options) {
  const Data data(options);
  Measure(options, nullptr, 0, data, 0.0);
  for (const KernelTable* table : AvailableKernels()) {
    if (options.table != "all" && options.table != table->name) continue;
    for (std::int32_t format = 0; format < kNumFormats; ++format) {
      const std::string_view name = kFormatInfo[static_cast<std::size_t>(format)].name;
      if (options.format != "all" && options.format != name) continue;
      MeasureCounts(options, table, format, data);
    }
  }
}

}  // namespace
}  // namespace powerinfer

int main(int argc, char** argv) {
  powerinfer::Options options;
  if (argc > 1) options.table = argv[1];
  if (argc > 2) options.format = argv[2];
  if (argc > 3) options.megabytes = std::max(0.05, std::atof(argv[3]));
  if (argc > 4) options.num_threads = std::clamp(std::atoi(argv[4]), 1, 256);
  if (argc > 5) options.token_counts = powerinfer::ParseCounts(argv[5]);
  if (argc > 6) options.operation = argv[6];
  if (argc > 7) options.ahead = std::clamp(std::atoi(argv[7]), 0, 1 << 20);
  if (argc > 8) options.columns = std::clamp(std::atoi(argv[8]) / 32 * 32, 32, 4096);
  powerinfer::Run(options);
}
