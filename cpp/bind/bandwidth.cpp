// Plain reads, whose speed is the most that memory gives, and the settings of a team's reads.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/rounding.h"
#include "bind/bind.h"
#include "bind/handles.h"
#include "kernels/read_way.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

// Rows of a few KiB: handing out a chunk costs nothing compared with reading it, and rows that no
// other row prefetches hardly count.
constexpr std::int64_t kRowsPerChunk = 64;
// Larger distances and chunks are mistakes, and would overflow in sums.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
// Independent sums, so that the additions never hold up the loads.
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(sizeof(std::uint64_t));
constexpr std::int64_t kMaxStreams = 16;
constexpr const char* kReadKindNames[kNumReadKinds] = {"floats", "bytes", "packed"};

/// XORs kStep bytes into the lanes.
inline void AddStep(const std::uint8_t* data, std::uint64_t* lanes) {
  std::uint64_t words[kLanes];
  std::memcpy(words, data, sizeof(words));
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] ^= words[i];
}

/// XOR of the 64-bit words of one row; trailing bytes are ignored.
std::uint64_t ReadRow(const std::uint8_t* row, std::int64_t row_bytes) {
  std::uint64_t lanes[kLanes] = {};
  std::int64_t offset = 0;
  for (; offset + kStep <= row_bytes; offset += kStep) AddStep(row + offset, lanes);
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum ^= lane;
  for (; offset + 8 <= row_bytes; offset += 8) {
    std::uint64_t word;
    std::memcpy(&word, row + offset, sizeof(word));
    sum ^= word;
  }
  return sum;
}

/// Settings of a plain read.
struct PlainWay {
  std::int64_t ahead;        ///< bytes from a read to its prefetch; 0: no prefetches
  std::int64_t chunk_bytes;  ///< handed to a thread at a time
  std::int64_t streams;      ///< places of a chunk that are read in turns
};

/// XOR of the words of one chunk, as in ReadRow.
std::uint64_t ReadChunk(const std::uint8_t* data, std::int64_t num_bytes, const PlainWay& way) {
  std::uint64_t lanes[kLanes] = {};
  const std::int64_t part = num_bytes / (way.streams * kStep) * kStep;
  for (std::int64_t offset = 0; offset < part; offset += kStep) {
    for (std::int64_t stream = 0; stream < way.streams; ++stream) {
      const std::uint8_t* at = data + stream * part + offset;
      if (way.ahead != 0 && offset + way.ahead + kStep <= part) {
        __builtin_prefetch(at + way.ahead);
        __builtin_prefetch(at + way.ahead + kStep / 2);
      }
      AddStep(at, lanes);
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum ^= lane;
  const std::int64_t done = way.streams * part;
  return sum ^ ReadRow(data + done, num_bytes - done);
}

/// Reads all arrays in one region and returns the XOR of their words. The bytes after the last
/// whole word of an array are ignored.
std::uint64_t ReadBytes(TeamHandle& team, const std::vector<Array<const std::uint8_t, 1>>& arrays,
                        std::int64_t ahead, std::int64_t chunk_bytes, std::int64_t streams) {
  if (ahead < 0 || ahead > kMostBytes) throw nb::value_error("bytes ahead must be 0 to 2^30");
  if (streams < 1 || streams > kMaxStreams) throw nb::value_error("streams must be 1 to 16");
  if (chunk_bytes < 64 || chunk_bytes % 64 != 0) {
    throw nb::value_error("chunks must be a multiple of 64 bytes");
  }
  const PlainWay way{ahead, chunk_bytes, streams};
  std::vector<std::span<const std::uint8_t>> chunks;
  for (const auto& array : arrays) {
    const std::span<const std::uint8_t> bytes(array.data(), array.shape(0));
    const auto size = static_cast<std::size_t>(chunk_bytes);
    for (std::size_t first = 0; first < bytes.size(); first += size) {
      chunks.push_back(bytes.subspan(first, std::min(size, bytes.size() - first)));
    }
  }
  std::atomic<std::uint64_t> sum = 0;
  team.Run([&](const OpContext& context) {
    context.team.ParallelFor(
        static_cast<std::int64_t>(chunks.size()), [&](std::int64_t chunk, std::int32_t) {
          const std::span<const std::uint8_t> bytes = chunks[static_cast<std::size_t>(chunk)];
          sum.fetch_xor(ReadChunk(bytes.data(), static_cast<std::int64_t>(bytes.size()), way),
                        std::memory_order_relaxed);
        });
  });
  return sum;
}

ReadKind ReadKindByName(const std::string& name) {
  for (std::size_t kind = 0; kind < kNumReadKinds; ++kind) {
    if (name == kReadKindNames[kind]) return static_cast<ReadKind>(kind);
  }
  throw nb::value_error(("no kernels read in a way named " + name).c_str());
}

using WayTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

WayTuple GetReadWay(TeamHandle& team, const std::string& kind) {
  const ReadKind checked = ReadKindByName(kind);
  const ReleasedGil released;
  const ReadWay way = team.shared.Way(checked);
  return {way.ahead, way.chunk_bytes, way.gather_ahead, way.add_ahead};
}

void SetReadWay(TeamHandle& team, const std::string& kind, const WayTuple& values) {
  const auto& [ahead, chunk_bytes, gather_ahead, add_ahead] = values;
  const auto is_valid = [&](std::int64_t value) { return value >= 0 && value <= kMostBytes; };
  if (!is_valid(ahead) || !is_valid(gather_ahead) || !is_valid(add_ahead) || chunk_bytes < 1 ||
      chunk_bytes > kMostBytes) {
    throw nb::value_error("distances must be 0 to 2^30 bytes, chunks 1 to 2^30");
  }
  const ReadKind checked = ReadKindByName(kind);
  const ReleasedGil released;
  team.shared.SetWay(checked, {ahead, chunk_bytes, gather_ahead, add_ahead});
}

/// XOR of the words of the rows at `rows`, `row_bytes` each. Prefetches each row while the row
/// `distance` places before it is read, unless that is 0.
std::uint64_t ReadRows(const std::uint8_t* data, std::int64_t row_bytes,
                       std::span<const std::int32_t> ids, std::size_t distance) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (distance != 0 && i + distance < ids.size()) {
      const std::uint8_t* next = data + ids[i + distance] * row_bytes;
      for (std::int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
    }
    sum ^= ReadRow(data + ids[i] * row_bytes, row_bytes);
  }
  return sum;
}

/// Reads the listed rows of u8[rows * row_bytes] with `ahead` bytes of rows in flight (0: no
/// prefetches); returns the XOR of their words.
std::uint64_t GatherRows(TeamHandle& team, const Array<const std::uint8_t, 1>& data,
                         std::int64_t row_bytes, const Array<const std::int32_t, 1>& row_ids,
                         std::int64_t ahead) {
  if (row_bytes < 1) throw nb::value_error("rows must have at least one byte");
  if (ahead < 0 || ahead > kMostBytes) throw nb::value_error("bytes ahead must be 0 to 2^30");
  const auto distance = static_cast<std::size_t>(ahead == 0 ? 0 : 1 + ahead / row_bytes);
  const std::int64_t rows = Size(data, 0) / row_bytes;
  const std::span<const std::int32_t> ids(row_ids.data(), row_ids.shape(0));
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < rows) continue;
    const std::string message =
        "row " + std::to_string(id) + " is not in [0, " + std::to_string(rows) + ")";
    throw nb::index_error(message.c_str());
  }
  const std::int64_t count = Size(row_ids, 0);
  std::atomic<std::uint64_t> sum = 0;
  team.Run([&](const OpContext& context) {
    const std::int64_t chunks = DivideUp(count, kRowsPerChunk);
    context.team.ParallelFor(chunks, [&](std::int64_t chunk, std::int32_t) {
      const std::int64_t first = chunk * kRowsPerChunk;
      const std::int64_t size = std::min(kRowsPerChunk, count - first);
      const auto own = ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
      sum.fetch_xor(ReadRows(data.data(), row_bytes, own, distance), std::memory_order_relaxed);
    });
  });
  return sum;
}

}  // namespace

void BindBandwidth(nb::module_& module) {
  module.def("gather_rows", &GatherRows, "team"_a, "data"_a.noconvert(), "row_bytes"_a,
             "row_ids"_a.noconvert(), "ahead"_a = 0);
  module.def("read_bytes", &ReadBytes, "team"_a, "arrays"_a, "ahead"_a, "chunk_bytes"_a,
             "streams"_a);
  module.def("read_kind", [](const std::string& format_name) {
    return kReadKindNames[static_cast<std::size_t>(ReadKindOf(FormatByName(format_name)))];
  });
  module.def("read_way", &GetReadWay, "team"_a, "kind"_a);
  module.def("set_read_way", &SetReadWay, "team"_a, "kind"_a, "way"_a);
}

}  // namespace powerinfer
