// Chunks in spans: every chunk once, whoever takes it, and in order where nobody helps.
#include "base/chunk_spans.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

/// Calls body(chunk) for all of `num_chunks` chunks. Returns how often each was run.
template <typename Body>
std::vector<std::int32_t> CountRuns(ThreadTeam& team, std::int64_t num_chunks, const Body& body) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_chunks));  // not atomic: TSan
  ForChunksInSpans(team, num_chunks, [&](std::int64_t chunk) {
    ++counts.at(static_cast<std::size_t>(chunk));
    body(chunk);
  });
  return counts;
}

bool AreAllOne(const std::vector<std::int32_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [](std::int32_t n) { return n == 1; });
}

std::vector<std::int64_t> RestOf(ChunkSpans& spans, std::int64_t own) {
  std::vector<std::int64_t> taken;
  spans.Run(own, [&](std::int64_t chunk) { taken.push_back(chunk); });
  return taken;
}

}  // namespace

TEST_CASE("ChunkSpansRunEveryChunkOnce") {
  for (std::int32_t threads = 1; threads <= 16; ++threads) {
    ThreadTeam team(threads);
    for (const std::int64_t chunks : {0, 1, 2, 3, 5, 8, 15, 16, 17, 100, 1001}) {
      for (int round = 0; round < 3; ++round) {
        const auto counts = CountRuns(team, chunks, [](std::int64_t) {});
        REQUIRE_MESSAGE(AreAllOne(counts), chunks, " chunks for ", threads, " threads");
      }
    }
  }
}

TEST_CASE("ChunkSpansAreTakenInOrderOwnFirst") {
  for (const std::int64_t own : {0, 1, 2}) {
    ChunkSpans spans(10, 3);  // from 0, 3 and 6
    std::vector<std::int64_t> wanted(10);
    std::iota(wanted.begin(), wanted.end(), 0);
    std::rotate(wanted.begin(), wanted.begin() + 3 * own, wanted.end());
    REQUIRE(RestOf(spans, own) == wanted);
    REQUIRE_MESSAGE(RestOf(spans, (own + 1) % 3).empty(), "chunks were left, or taken twice");
  }
}

/// Whoever has the slow chunk waits until the others have taken all that was left of its span.
TEST_CASE("ChunkSpansOfASlowThreadAreTakenByOthers") {
  constexpr std::int64_t kChunks = 40;
  for (std::int32_t threads = 2; threads <= 16; ++threads) {
    ThreadTeam team(threads);
    for (const std::int64_t slow : {std::int64_t{0}, kChunks / 2, kChunks - 1}) {
      std::atomic<std::int64_t> num_done{0};
      const auto counts = CountRuns(team, kChunks, [&](std::int64_t chunk) {
        while (chunk == slow && num_done.load() < kChunks - 1) std::this_thread::yield();
        ++num_done;
      });
      REQUIRE_MESSAGE(AreAllOne(counts), threads, " threads, chunk ", slow, " is slow");
    }
  }
}

TEST_CASE("ChunkSpansPassErrorsOn") {
  ThreadTeam team(3);
  const auto fail = [](std::int64_t chunk) {
    if (chunk == 7) throw std::runtime_error("chunk failed");
  };
  REQUIRE_THROWS_WITH_AS(CountRuns(team, 20, fail), "chunk failed", std::runtime_error);
  REQUIRE(AreAllOne(CountRuns(team, 20, [](std::int64_t) {})));
}

}  // namespace powerinfer::testing
