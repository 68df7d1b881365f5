#include "sparse/fired_bits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace powerinfer {
namespace {

constexpr std::int64_t kGroup = 64;

/// Eight bytes of 0 or 1 as bits, the first byte's the lowest.
std::uint64_t Gather(const std::uint8_t* flags) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, flags, sizeof bytes);
  // Brings byte i's bit to bit 56 + i; no two products meet.
  return (bytes * 0x0102040810204080U) >> 56U;
}

/// Bit i: values[i] is not zero, i < count <= kGroup.
std::uint64_t BitsOf(const float* values, std::int64_t count) {
  std::array<std::uint8_t, kGroup> flags{};
  if (count == kGroup) {  // with a constant number of rounds the compiler takes vectors
    for (std::size_t i = 0; i < kGroup; ++i) flags[i] = values[i] != 0.0F ? 1 : 0;
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      flags[static_cast<std::size_t>(i)] = values[i] != 0.0F ? 1 : 0;
    }
  }
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < kGroup; i += 8) bits |= Gather(flags.data() + i) << i;
  return bits;
}

/// Adds `count` bits to a row, from bit `place` on. Touches no byte without any of them.
void AddBits(std::uint8_t* row, std::int64_t place, std::uint64_t bits, std::int64_t count) {
  const auto shift = static_cast<std::uint64_t>(place % 8);
  std::uint8_t* byte = row + place / 8;
  *byte |= static_cast<std::uint8_t>(bits << shift);
  for (auto done = static_cast<std::int64_t>(8 - shift); done < count; done += 8) {
    *++byte |= static_cast<std::uint8_t>(bits >> static_cast<std::uint64_t>(done));
  }
}

}  // namespace

FiredBits FiredBits::From(std::int64_t first) const {
  FiredBits part = *this;
  if (tokens != nullptr) {
    part.tokens += first;
  } else if (IsWanted()) {
    part.data += first * row_bytes;
  }
  return part;
}

FiredBits FiredBits::Part(const std::int32_t* own_tokens, std::int64_t neuron) const {
  return {data, row_bytes, own_tokens, neuron};
}

void FiredBits::Set(std::int64_t token, const float* values, std::int64_t count) const {
  std::uint8_t* row = Row(token);
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t size = std::min(kGroup, count - i);
    AddBits(row, first_neuron + i, BitsOf(values + i, size), size);
  }
}

void FiredBits::SetListed(std::int64_t token, const std::int32_t* ids, const float* values,
                          std::int64_t count) const {
  std::uint8_t* row = Row(token);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = first_neuron + ids[i];
    const auto bit = static_cast<std::uint32_t>(values[i] != 0.0F ? 1 : 0);
    row[place / 8] |= static_cast<std::uint8_t>(bit << static_cast<std::uint32_t>(place % 8));
  }
}

void CountFired(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t row_bytes,
                std::int64_t* counts) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::uint8_t* row = rows + r * row_bytes;
    for (std::int64_t byte = 0; byte < row_bytes; byte += 8) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, row + byte,
                  static_cast<std::size_t>(std::min<std::int64_t>(8, row_bytes - byte)));
      for (; bits != 0; bits &= bits - 1) ++counts[byte * 8 + std::countr_zero(bits)];
    }
  }
}

}  // namespace powerinfer
