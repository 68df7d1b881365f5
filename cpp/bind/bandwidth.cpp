// Reading rows and nothing else: what memory gives at most to operators that gather neurons.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/rounding.h"
#include "bind/bind.h"
#include "bind/handles.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

// Rows of a few KiB: a chunk is large enough that handing it out costs nothing beside reading it.
constexpr std::int64_t kRowsPerChunk = 16;
// Independent sums, so that the additions never hold up the loads.
constexpr std::int64_t kLanes = 16;

/// XOR of the 64-bit words of one row; bytes beyond a whole number of words are left out.
std::uint64_t ReadRow(const std::uint8_t* row, std::int64_t row_bytes) {
  std::uint64_t lanes[kLanes] = {};
  std::int64_t offset = 0;
  constexpr std::int64_t kStep = kLanes * static_cast<std::int64_t>(sizeof(std::uint64_t));
  for (; offset + kStep <= row_bytes; offset += kStep) {
    std::uint64_t words[kLanes];
    std::memcpy(words, row + offset, sizeof(words));
    for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] ^= words[i];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum ^= lane;
  for (; offset + 8 <= row_bytes; offset += 8) {
    std::uint64_t word;
    std::memcpy(&word, row + offset, sizeof(word));
    sum ^= word;
  }
  return sum;
}

/// Reads the listed rows of u8[rows * row_bytes]; returns the XOR of their words.
std::uint64_t GatherRows(TeamHandle& team, const Array<const std::uint8_t, 1>& data,
                         std::int64_t row_bytes, const Array<const std::int32_t, 1>& row_ids) {
  if (row_bytes < 1) throw nb::value_error("rows must have at least one byte");
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
      const std::int64_t end = std::min(count, (chunk + 1) * kRowsPerChunk);
      std::uint64_t part = 0;
      for (std::int64_t i = chunk * kRowsPerChunk; i < end; ++i) {
        part ^= ReadRow(data.data() + ids[static_cast<std::size_t>(i)] * row_bytes, row_bytes);
      }
      sum.fetch_xor(part, std::memory_order_relaxed);
    });
  });
  return sum;
}

}  // namespace

void BindBandwidth(nb::module_& module) {
  module.def("gather_rows", &GatherRows, "team"_a, "data"_a.noconvert(), "row_bytes"_a,
             "row_ids"_a.noconvert());
}

}  // namespace powerinfer
