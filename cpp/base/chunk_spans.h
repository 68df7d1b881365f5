// Splitting chunks that are neighbours in memory over a team.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_team.h"

namespace powerinfer {

/// The chunks [0, num_chunks) in spans, each taken from its beginning by any number of threads.
class ChunkSpans {
 public:
  ChunkSpans(std::int64_t num_chunks, std::int64_t num_spans)
      : spans_(static_cast<std::size_t>(num_spans)) {
    for (std::int64_t i = 0; i < num_spans; ++i) {
      Span& span = spans_[static_cast<std::size_t>(i)];
      span.next.store(num_chunks * i / num_spans, std::memory_order_relaxed);
      span.end = num_chunks * (i + 1) / num_spans;
    }
  }

  /// Calls body(chunk) for what is left of the span `own`, then for what is left of the others.
  template <typename Body>
  void Run(std::int64_t own, const Body& body) {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      Span& span = spans_[(static_cast<std::size_t>(own) + i) % spans_.size()];
      // Read first: what nobody writes, all can read at once.
      while (span.next.load(std::memory_order_relaxed) < span.end) {
        const std::int64_t chunk = span.next.fetch_add(1, std::memory_order_relaxed);
        if (chunk < span.end) body(chunk);
      }
    }
  }

 private:
  struct alignas(128) Span {  // processors fetch lines of 64 bytes in pairs
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::vector<Span> spans_;
};

/// Calls body(chunk) for every chunk in [0, num_chunks), each exactly once. A member of the team
/// takes a span of its own in order, so that the processor's prefetchers run on from one chunk to
/// the next, and then helps the others; starting elsewhere costs as much as some KiB of weights.
template <typename Body>
void ForChunksInSpans(ThreadTeam& team, std::int64_t num_chunks, const Body& body) {
  const std::int64_t num_spans = std::min<std::int64_t>(num_chunks, team.NumThreads());
  ChunkSpans spans(num_chunks, num_spans);
  const auto run = [&](std::int64_t own, std::int32_t) { spans.Run(own, body); };
  team.ParallelFor(num_spans, std::ref(run));
}

}  // namespace powerinfer
