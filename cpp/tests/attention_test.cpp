// Attention and cache writes against double precision, for every kernel table.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/rope.h"
#include "tests/ops_testing.h"

namespace powerinfer::testing {
namespace {

struct Sizes {
  std::int64_t num_heads, num_kv_heads, head_dim, block_size, window;
};

/// A cache with one sequence per length, its blocks in scattered order, and the last `num_new`
/// tokens of each as the batch.
struct Scene {
  Sizes sizes;
  std::int64_t num_new;
  std::vector<std::vector<float>> keys, values;  // per sequence f32[length, kv_heads * head_dim]
  std::vector<std::int32_t> positions, sequences, tables;
  std::vector<float> q;
  std::unique_ptr<KVCache> cache;
  BatchView batch;

  Scene(const OpContext& context, const Sizes& s, Format format,
        const std::vector<std::int64_t>& lengths, std::int64_t tokens, Random& random)
      : sizes(s), num_new(tokens) {
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t max_blocks = (longest + s.block_size - 1) / s.block_size;
    const auto num_sequences = std::ssize(lengths);
    const KVShape shape{max_blocks * num_sequences, s.block_size, s.num_kv_heads, s.head_dim};
    cache = std::make_unique<KVCache>(shape, format);
    for (std::int64_t i = 0; i < num_sequences * max_blocks; ++i) {
      tables.push_back(static_cast<std::int32_t>(shape.num_blocks - 1 - i));
    }
    for (std::int64_t i = 0; i < num_sequences; ++i) {
      Fill(context, i, lengths[static_cast<std::size_t>(i)], max_blocks, random);
    }
    q = RandomFloats(std::ssize(positions) * s.num_heads * s.head_dim, random);
    batch = {positions.data(),      sequences.data(), tables.data(),
             std::ssize(positions), num_sequences,    max_blocks};
  }

  /// Stores all positions of a sequence and adds its last tokens to the batch.
  void Fill(const OpContext& context, std::int64_t sequence, std::int64_t length,
            std::int64_t max_blocks, Random& random) {
    const std::int64_t width = sizes.num_kv_heads * sizes.head_dim;
    keys.push_back(RandomFloats(length * width, random));
    values.push_back(RandomFloats(length * width, random));
    std::vector<std::int32_t> all(static_cast<std::size_t>(length));
    for (std::int64_t p = 0; p < length; ++p) {
      all[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(p);
    }
    const std::vector<std::int32_t> own(all.size(), static_cast<std::int32_t>(sequence));
    const BatchView whole{all.data(), own.data(), tables.data(), length, sequence + 1, max_blocks};
    RopeAndStore(context, {keys.back().data(), length, width, width},
                 {keys.back().data(), length, width, width},
                 {values.back().data(), length, width, width}, *cache, whole, {});
    for (std::int64_t p = std::max<std::int64_t>(0, length - num_new); p < length; ++p) {
      positions.push_back(static_cast<std::int32_t>(p));
      sequences.push_back(static_cast<std::int32_t>(sequence));
    }
  }

  std::vector<float> Run(const OpContext& context) const {
    std::vector<float> out(q.size());
    const std::int64_t width = sizes.num_heads * sizes.head_dim;
    AttentionCall call;
    call.q = {q.data(), batch.num_tokens, width, width};
    call.out = {out.data(), batch.num_tokens, width, width};
    call.cache = cache.get();
    call.batch = batch;
    call.num_heads = sizes.num_heads;
    call.scale = 1.0F / std::sqrt(static_cast<float>(sizes.head_dim));
    call.window = sizes.window;
    Attention(context, call);
    return out;
  }

  /// One head of one token in double precision, from the unrounded keys and values.
  std::vector<double> Expected(std::int64_t token, std::int64_t head) const {
    const auto sequence = static_cast<std::size_t>(sequences[static_cast<std::size_t>(token)]);
    const std::int64_t position = positions[static_cast<std::size_t>(token)];
    const std::int64_t kv_head = head / (sizes.num_heads / sizes.num_kv_heads);
    const std::int64_t width = sizes.num_kv_heads * sizes.head_dim;
    const float* query = q.data() + (token * sizes.num_heads + head) * sizes.head_dim;
    std::vector<double> sums(static_cast<std::size_t>(sizes.head_dim));
    double total = 0.0;
    const std::int64_t first =
        sizes.window > 0 ? std::max<std::int64_t>(0, position - sizes.window + 1) : 0;
    for (std::int64_t p = first; p <= position; ++p) {
      const std::int64_t at = p * width + kv_head * sizes.head_dim;
      double score = 0.0;
      for (std::int64_t i = 0; i < sizes.head_dim; ++i) {
        score += static_cast<double>(query[i]) * keys[sequence][static_cast<std::size_t>(at + i)];
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(sizes.head_dim)));
      total += weight;
      for (std::int64_t i = 0; i < sizes.head_dim; ++i) {
        sums[static_cast<std::size_t>(i)] +=
            weight * values[sequence][static_cast<std::size_t>(at + i)];
      }
    }
    for (double& sum : sums) sum /= total;
    return sums;
  }

  void CheckResult(const std::vector<float>& got, double tolerance,
                   const std::string& where) const {
    for (std::int64_t token = 0; token < batch.num_tokens; ++token) {
      for (std::int64_t head = 0; head < sizes.num_heads; ++head) {
        const std::vector<double> wanted = Expected(token, head);
        for (std::int64_t i = 0; i < sizes.head_dim; ++i) {
          const auto at =
              static_cast<std::size_t>((token * sizes.num_heads + head) * sizes.head_dim + i);
          const double error = std::fabs(got[at] - wanted[static_cast<std::size_t>(i)]);
          REQUIRE_MESSAGE(error <= tolerance, where, " token ", token, " head ", head, ": error ",
                          error);
        }
      }
    }
  }
};

// Values in [-1, 1]: f16 keeps 11 bits of each, Q8_0 steps are at most 1/127; the softmax averages.
constexpr double kF16Error = 1e-3;
constexpr double kQ8Error = 6e-3;

/// The result agrees with double precision and has the same bits for any number of threads.
void CheckScene(const KernelTable& table, const Sizes& sizes, Format format,
                const std::vector<std::int64_t>& lengths, std::int64_t num_new) {
  Random random(5);
  TestTeam one(1, table);
  const Scene scene(one.context, sizes, format, lengths, num_new, random);
  const std::vector<float> expected = scene.Run(one.context);
  const std::string where = std::string(table.name) + " " + std::string(InfoOf(format).name);
  scene.CheckResult(expected, format == Format::kF16 ? kF16Error : kQ8Error, where);
  for (const std::int32_t threads : {2, 3, 7}) {
    TestTeam team(threads, table);
    REQUIRE_MESSAGE(SameBits(scene.Run(team.context), expected), where,
                    ": bits differ between teams");
  }
}

TEST_CASE("AttentionDecodes") {
  for (const KernelTable* table : AvailableKernels()) {
    CheckScene(*table, {4, 2, 16, 16, 0}, Format::kF16, {1, 37, 700}, 1);
    CheckScene(*table, {8, 1, 24, 64, 0}, Format::kF16, {300}, 1);
    CheckScene(*table, {2, 2, 64, 16, 0}, Format::kQ8_0, {530}, 1);
  }
}

TEST_CASE("AttentionPrefills") {
  for (const KernelTable* table : AvailableKernels()) {
    CheckScene(*table, {4, 2, 13, 7, 0}, Format::kF16, {75, 9}, 75);
    CheckScene(*table, {3, 3, 32, 64, 0}, Format::kQ8_0, {300}, 70);
    CheckScene(*table, {40, 1, 8, 16, 0}, Format::kF16, {20}, 20);
    CheckScene(*table, {71, 1, 16, 16, 0}, Format::kF16, {300}, 2);
    CheckScene(*table, {1, 1, 300, 64, 0}, Format::kF16, {40}, 40);
  }
}

TEST_CASE("AttentionSlidesItsWindow") {
  for (const KernelTable* table : AvailableKernels()) {
    CheckScene(*table, {2, 1, 16, 16, 5}, Format::kF16, {300}, 40);
    CheckScene(*table, {2, 1, 16, 16, 257}, Format::kF16, {600}, 1);
    CheckScene(*table, {2, 1, 16, 16, 1000}, Format::kF16, {300}, 3);
  }
}

TEST_CASE("AttentionRefusesMissingBlocks") {
  Random random(7);
  TestTeam team(1);
  Scene scene(team.context, {2, 1, 16, 16, 0}, Format::kF16, {100}, 1, random);
  for (const std::int32_t bad : {-1, 1000}) {
    scene.tables[2] = bad;
    bool was_refused = false;
    try {
      scene.Run(team.context);
    } catch (const std::out_of_range&) {
      was_refused = true;
    }
    REQUIRE_MESSAGE(was_refused, "block ", bad, " must be an error");
  }
}

}  // namespace
}  // namespace powerinfer::testing
