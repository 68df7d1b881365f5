// Prefetch settings for reading weights. They affect speed only, never a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/formats.h"

namespace powerinfer {

/// Kernels that differ in how much they compute per byte, and so in how memory serves them best.
enum class ReadKind : std::uint8_t {
  kFloats,  ///< f32, f16, bf16: next to nothing is computed
  kBytes,   ///< q8_0: codes are used as they lie
  kPacked,  ///< all others: codes are unpacked
};
inline constexpr std::size_t kNumReadKinds = 3;

inline ReadKind ReadKindOf(Format format) {
  if (InfoOf(format).block_size == 1) return ReadKind::kFloats;
  const bool is_bytes = format == Format::kQ8_0 || format == Format::kQ8_0Superblock;
  return is_bytes ? ReadKind::kBytes : ReadKind::kPacked;
}

/// Settings for the rows of one kind. These defaults suit most processors; which distances are
/// fastest differs between models of one vendor, so a machine measures its own
/// (ops/cpu/prefetch_speed.py).
struct ReadWay {
  /// Distance by which a dot kernel prefetches bytes before it reads them; 0: never. The hardware's
  /// own prefetchers stop at page borders and fall behind if much is computed per byte. Two threads
  /// from memory, AVX2, GB/s for 0, 512, 1024, 2048 bytes: plain Q4_K 9.7, 14.0, 16.0, 17.2; Q4_0
  /// superblocks 16.8, 18.6, 19.2, 20.1 (cpp/bench/bench_kernels.cpp, 1.2 GB of weights; a plain
  /// read: 19.9).
  std::int64_t ahead = 2048;
  /// Maximum bytes handed to a thread at a time. Long chunks let the processor's prefetchers run:
  /// at two threads F16 decode reads 20 GB/s in chunks of 48 KiB, 21 of 128 KiB, 24 of 512 KiB and
  /// of 2 MiB.
  std::int64_t chunk_bytes = 2048 * 1024;
  /// Bytes of scattered rows in flight: as many as memory delivers while it answers one request,
  /// and some more. For rows that are multiplied, and for rows that are added.
  std::int64_t gather_ahead = 12 * 1024;
  std::int64_t add_ahead = 12 * 1024;
};

/// The settings of a team.
struct ReadWays {
  ReadWay of_kind[kNumReadKinds];

  const ReadWay& Of(Format format) const {
    return of_kind[static_cast<std::size_t>(ReadKindOf(format))];
  }

  /// Distance by which products with `num_tokens` tokens prefetch rows. Settings are measured with
  /// one token; with several so much is computed per byte that the hardware's prefetchers always
  /// fall behind. Eight tokens, Q4_0, on a Zen 4 that reads fastest without prefetches: 3.3 times
  /// the time of one token without, 2.1 with.
  std::int64_t Ahead(Format format, std::int64_t num_tokens) const {
    const std::int64_t ahead = Of(format).ahead;
    return num_tokens > 1 ? std::max(ahead, ReadWay{}.ahead) : ahead;
  }
};

inline constexpr ReadWays kDefaultReadWays{};

}  // namespace powerinfer
