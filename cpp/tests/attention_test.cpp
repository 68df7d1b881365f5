// Attention and cache writes against double precision, for every kernel table.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
  bool has_sinks = false;
  double soft_cap = 0.0;
};

/// A cache with one sequence per length, its blocks in scattered order, and the last `num_new`
/// tokens of each as the batch.
struct Scene {
  Sizes sizes;
  std::int64_t num_new;
  std::vector<std::vector<float>> keys, values;  // per sequence f32[length, kv_heads * head_dim]
  std::vector<std::int32_t> positions, sequences, tables;
  std::vector<float> q, sinks;
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
    // One head's sink weighs as much as many positions.
    if (s.has_sinks) sinks = RandomFloats(s.num_heads, random);
    if (s.has_sinks) sinks.back() = 5.0F;
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

  /// Rows of all tokens; marks: for each token, whether it is prompt.
  std::vector<float> Run(const OpContext& context, const bool* marks) const {
    return RunPart(context, marks, 0, batch.num_tokens);
  }

  /// Rows of tokens [first, first + count), computed without the others.
  std::vector<float> RunPart(const OpContext& context, const bool* marks, std::int64_t first,
                             std::int64_t count) const {
    const std::int64_t width = sizes.num_heads * sizes.head_dim;
    std::vector<float> out(static_cast<std::size_t>(count * width));
    AttentionCall call;
    call.q = {q.data() + first * width, count, width, width};
    call.out = {out.data(), count, width, width};
    call.cache = cache.get();
    call.batch = batch;
    call.batch.positions += first;
    call.batch.sequences += first;
    call.batch.num_tokens = count;
    call.batch.is_prompt = marks == nullptr ? nullptr : marks + first;
    call.num_heads = sizes.num_heads;
    call.scale = 1.0F / std::sqrt(static_cast<float>(sizes.head_dim));
    call.window = sizes.window;
    call.sinks = sizes.has_sinks ? sinks.data() : nullptr;
    call.soft_cap = static_cast<float>(sizes.soft_cap);
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
    const auto sink = static_cast<std::size_t>(head);
    double total = sizes.has_sinks ? std::exp(static_cast<double>(sinks[sink])) : 0.0;
    const std::int64_t first =
        sizes.window > 0 ? std::max<std::int64_t>(0, position - sizes.window + 1) : 0;
    for (std::int64_t p = first; p <= position; ++p) {
      const std::int64_t at = p * width + kv_head * sizes.head_dim;
      double score = 0.0;
      for (std::int64_t i = 0; i < sizes.head_dim; ++i) {
        score += static_cast<double>(query[i]) * keys[sequence][static_cast<std::size_t>(at + i)];
      }
      score /= std::sqrt(static_cast<double>(sizes.head_dim));
      const double cap = sizes.soft_cap;
      const double weight = std::exp(cap > 0.0 ? cap * std::tanh(score / cap) : score);
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

/// For each token of a batch, whether it is prompt.
class Marks {
 public:
  template <typename KindOf>
  Marks(std::int64_t num_tokens, const KindOf& kind_of)
      : marks_(std::make_unique<bool[]>(static_cast<std::size_t>(num_tokens))) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      marks_[static_cast<std::size_t>(t)] = kind_of(t) == RowKind::kPrompt;
    }
  }
  const bool* Data() const { return marks_.get(); }

 private:
  std::unique_ptr<bool[]> marks_;
};

/// The result agrees with double precision and has the same bits for any number of threads.
void CheckScene(const KernelTable& table, const Sizes& sizes, Format format,
                const std::vector<std::int64_t>& lengths, std::int64_t num_new, RowKind kind) {
  Random random(5);
  TestTeam one(1, table);
  const Scene scene(one.context, sizes, format, lengths, num_new, random);
  const Marks marks(scene.batch.num_tokens, [kind](std::int64_t) { return kind; });
  const std::vector<float> expected = scene.Run(one.context, marks.Data());
  const std::string where = std::string(table.name) + " " + std::string(InfoOf(format).name);
  scene.CheckResult(expected, format == Format::kF16 ? kF16Error : kQ8Error, where);
  for (const std::int32_t threads : {2, 3, 7}) {
    TestTeam team(threads, table);
    REQUIRE_MESSAGE(SameBits(scene.Run(team.context, marks.Data()), expected), where,
                    ": bits differ between teams");
  }
}

TEST_CASE("AttentionDecodes") {
  for (const KernelTable* table : AvailableKernels()) {
    CheckScene(*table, {4, 2, 16, 16, 0}, Format::kF16, {1, 37, 700}, 1, RowKind::kDecode);
    CheckScene(*table, {8, 1, 24, 64, 0}, Format::kF16, {300}, 1, RowKind::kDecode);
    CheckScene(*table, {2, 2, 64, 16, 0}, Format::kQ8_0, {530}, 1, RowKind::kDecode);
  }
}

TEST_CASE("AttentionPrefills") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const RowKind kind : {RowKind::kPrompt, RowKind::kDecode}) {
      CheckScene(*table, {4, 2, 13, 7, 0}, Format::kF16, {75, 9}, 75, kind);
      CheckScene(*table, {3, 3, 32, 64, 0}, Format::kQ8_0, {300}, 70, kind);
      CheckScene(*table, {40, 1, 8, 16, 0}, Format::kF16, {20}, 20, kind);
      CheckScene(*table, {71, 1, 16, 16, 0}, Format::kF16, {300}, 2, kind);
      CheckScene(*table, {1, 1, 300, 64, 0}, Format::kF16, {40}, 40, kind);
    }
  }
}

TEST_CASE("AttentionSlidesItsWindow") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const RowKind kind : {RowKind::kPrompt, RowKind::kDecode}) {
      CheckScene(*table, {2, 1, 16, 16, 5}, Format::kF16, {300}, 40, kind);
      CheckScene(*table, {2, 1, 16, 16, 1000}, Format::kF16, {300}, 3, kind);
    }
    CheckScene(*table, {2, 1, 16, 16, 257}, Format::kF16, {600}, 1, RowKind::kDecode);
  }
}

TEST_CASE("AttentionCapsScoresAndAddsSinks") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const RowKind kind : {RowKind::kPrompt, RowKind::kDecode}) {
      CheckScene(*table, {4, 2, 16, 16, 0, true}, Format::kF16, {1, 37, 700}, 9, kind);
      CheckScene(*table, {8, 1, 32, 16, 258, true, 30.0}, Format::kQ8_0, {600}, 3, kind);
      CheckScene(*table, {3, 3, 13, 7, 5, false, 0.5}, Format::kF16, {90}, 40, kind);
    }
  }
}

/// Every token computed alone, and in pieces, has the bits that it has among the others.
void CheckTokens(const KernelTable& table, const Sizes& sizes, Format format,
                 const std::vector<std::int64_t>& lengths, std::int64_t num_new) {
  Random random(11);
  TestTeam team(2, table);
  const Scene scene(team.context, sizes, format, lengths, num_new, random);
  const Marks marks(scene.batch.num_tokens, [&random](std::int64_t) {
    return random.Uniform(0.0F, 1.0F) < 0.8F ? RowKind::kPrompt : RowKind::kDecode;
  });
  const std::vector<float> whole = scene.Run(team.context, marks.Data());
  const std::int64_t width = sizes.num_heads * sizes.head_dim;
  for (const std::int64_t piece : {1, 7}) {
    for (std::int64_t first = 0; first < scene.batch.num_tokens; first += piece) {
      const std::int64_t count = std::min(piece, scene.batch.num_tokens - first);
      const std::vector<float> part = scene.RunPart(team.context, marks.Data(), first, count);
      REQUIRE_MESSAGE(
          std::memcmp(part.data(), whole.data() + first * width, part.size() * sizeof(float)) == 0,
          std::string(table.name), " ", std::string(InfoOf(format).name), " window ", sizes.window,
          ": token ", first, " of a piece of ", piece, " has other bits than in the whole batch");
    }
  }
}

TEST_CASE("AttentionOfATokenDoesNotDependOnTheOthers") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : {Format::kF16, Format::kQ8_0}) {
      for (const std::int64_t window : {0, 5, 45, 260}) {
        CheckTokens(*table, {2, 2, 32, 16, window}, format, {300, 1, 70}, 80);
        CheckTokens(*table, {8, 2, 64, 64, window}, format, {290, 40}, 40);
        CheckTokens(*table, {8, 1, 32, 16, window}, format, {600}, 30);
        CheckTokens(*table, {8, 2, 32, 16, window, true, 0.7}, format, {300, 1}, 40);
      }
    }
  }
}

/// A sequence keeps its bits when its middle block is copied elsewhere.
TEST_CASE("CopiedBlocksAreTheSame") {
  Random random(9);
  TestTeam team(2);
  for (const Format format : {Format::kF16, Format::kQ8_0}) {
    Scene scene(team.context, {4, 2, 32, 8, 0}, format, {24, 13}, 3, random);
    const std::vector<float> before = scene.Run(team.context, nullptr);
    // The tables of both are three entries wide; the second sequence uses two of its own.
    const std::int32_t unused = scene.tables[5];
    scene.cache->CopyBlock(scene.tables[1], unused);
    std::swap(scene.tables[1], scene.tables[5]);
    REQUIRE(scene.Run(team.context, nullptr) == before);
    for (const std::int64_t bad : {-1, 6}) {
      REQUIRE_THROWS_AS(scene.cache->CopyBlock(bad, 0), std::out_of_range);
      REQUIRE_THROWS_AS(scene.cache->CopyBlock(0, bad), std::out_of_range);
    }
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
      scene.Run(team.context, nullptr);
    } catch (const std::out_of_range&) {
      was_refused = true;
    }
    REQUIRE_MESSAGE(was_refused, "block ", bad, " must be an error");
  }
}

}  // namespace
}  // namespace powerinfer::testing
