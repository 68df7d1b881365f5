#include "tests/reference_formats.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace powerinfer::testing {
namespace {

std::uint16_t U16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | (p[1] << 8)); }

double HalfAt(const std::uint8_t* p) { return HalfValue(U16(p)); }

int Nibble(const std::uint8_t* p, std::int64_t i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

int Bit(const std::uint8_t* p, std::int64_t i) { return (p[i / 8] >> (i % 8)) & 1; }

double FloatWeight(Format format, const std::uint8_t* row, std::int64_t i) {
  if (format == Format::kF16) return HalfAt(row + 2 * i);
  std::uint32_t bits = 0;
  if (format == Format::kBF16) {
    bits = static_cast<std::uint32_t>(U16(row + 2 * i)) << 16;
  } else {
    std::memcpy(&bits, row + 4 * i, 4);
  }
  return static_cast<double>(std::bit_cast<float>(bits));
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

/// Sub-block j of the 12 packed bytes of Q4_K and Q5_K.
ScaleAndMinimum KScale(const std::uint8_t* packed, std::int64_t j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
          (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)};
}

double KWeight(Format format, const std::uint8_t* block, std::int64_t i) {
  const std::int64_t j = i / 32;
  const ScaleAndMinimum k = KScale(block + 4, j);
  const std::uint8_t* nibbles = block + (format == Format::kQ4_K ? 16 : 48) + 32 * (j / 2);
  int code = j % 2 == 0 ? nibbles[i % 32] & 15 : nibbles[i % 32] >> 4;
  if (format == Format::kQ5_K) code += 16 * ((block[16 + i % 32] >> j) & 1);
  return HalfAt(block) * k.scale * code - HalfAt(block + 2) * k.minimum;
}

double SixBitWeight(const std::uint8_t* block, std::int64_t i) {
  const std::int64_t half = i / 128;
  const std::int64_t j = i % 128 / 32;  // which quarter of the half
  const std::uint8_t low = block[64 * half + 32 * (j % 2) + i % 32];
  const std::uint8_t high = block[128 + 32 * half + i % 32];
  const int code = (j < 2 ? low & 15 : low >> 4) + 16 * ((high >> (2 * j)) & 3);
  const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
  return HalfAt(block + 208) * scale * (code - 32);
}

double Fp4Weight(const std::uint8_t* block, std::int64_t i) {
  constexpr double kMagnitudes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  const int code = Nibble(block + 1, i);
  return std::ldexp(code < 8 ? kMagnitudes[code] : 0.0 - kMagnitudes[code - 8], block[0] - 128);
}

/// Formats whose files have blocks of 32: the scales of `lanes` blocks, their minima, the words of
/// their fifth bits, and vectors of words of their codes.
double BlockSuperblockWeight(Format format, const std::uint8_t* data, std::int64_t lanes,
                             std::int64_t i) {
  const std::int64_t j = i / 32;
  const std::int64_t v = i % 32 / 4;
  const bool is_q5 = format == Format::kQ5_0Superblock || format == Format::kQ5_1Superblock;
  const bool has_minima = format == Format::kQ4_1Superblock || format == Format::kQ5_1Superblock;
  const double scale = HalfAt(data + 2 * j);
  const double minimum = has_minima ? HalfAt(data + 2 * (lanes + j)) : 0.0;
  data += (has_minima ? 4 : 2) * lanes;
  if (format == Format::kQ8_0Superblock) {
    return scale * static_cast<std::int8_t>(data[4 * (lanes * v + j) + i % 4]);
  }
  int code = 0;
  if (is_q5) {
    code = 16 * ((data[4 * j + i % 4] >> v) & 1);
    data += 4 * lanes;
  }
  const std::uint8_t low = data[4 * (lanes * (v % 4) + j) + i % 4];
  code += v < 4 ? low & 15 : low >> 4;
  if (has_minima) return scale * code + minimum;
  return scale * (code - (is_q5 ? 16 : 8));
}

/// Q4_K and Q5_K.
double KSuperblockWeight(Format format, const std::uint8_t* block, std::int64_t i) {
  const std::int64_t j = i / 32;
  const std::int64_t v = i % 32 / 4;
  const std::int64_t lane = 4 * j + i % 4;
  const bool is_q5 = format == Format::kQ5_KSuperblock;
  const std::uint8_t low = block[(is_q5 ? 48 : 16) + 32 * (v % 4) + lane];
  int code = v < 4 ? low & 15 : low >> 4;
  if (is_q5) code += 16 * ((block[16 + lane] >> v) & 1);
  const int field = U16(block + 4 + 3 * j / 2) >> (j % 2 * 4);
  return HalfAt(block) * (field & 63) * code + HalfAt(block + 2) * (field >> 6 & 63);
}

double SixBitSuperblockWeight(const std::uint8_t* block, std::int64_t i) {
  const std::int64_t j = i / 32;
  const std::int64_t v = i % 32 / 4;
  const std::int64_t lane = 4 * j + i % 4;
  const std::uint8_t low = block[32 * (v % 4) + lane];
  const std::uint8_t high = block[128 + 32 * (v % 2) + lane];
  const int code = (v < 4 ? low & 15 : low >> 4) + 16 * ((high >> (v / 2 * 2)) & 3);
  const auto scale = static_cast<std::int8_t>(block[192 + 8 * (v / 4) + j]);
  return HalfAt(block + 208) * scale * (code - 32);
}

double LowbitWeight(Format format, const std::uint8_t* block, std::int64_t i) {
  const std::int64_t j = i / 32;
  const std::int64_t v = i % 32 / 4;
  const std::int64_t lane = 4 * j + i % 4;
  const int low = (block[16 + 32 * (v % 2) + lane] >> (2 * (v / 2))) & 3;
  if (format == Format::kLowbit2) return HalfAt(block + 2 * j) * (low - 1.5);
  const int high = (block[80 + lane] >> v) & 1;
  return HalfAt(block + 2 * j) * (low + 4 * high - 3.5);
}

/// Byte offsets of the f16 scales in one block of the format.
std::vector<std::int64_t> ScaleOffsets(Format format) {
  switch (format) {
    case Format::kQ4_1:
    case Format::kQ5_1:
    case Format::kQ4_K:
    case Format::kQ5_K:
      return {0, 2};
    case Format::kQ6_K:
      return {208};
    case Format::kSign:
      return {32};
    case Format::kLowbit2:
    case Format::kLowbit3:
      return {0, 2, 4, 6, 8, 10, 12, 14};
    default:
      return {0};
  }
}

}  // namespace

double HalfValue(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double WeightAt(Format format, const std::uint8_t* row, std::int64_t i, std::int64_t columns) {
  const FormatInfo& info = InfoOf(format);
  const std::uint8_t* block = row + i / info.block_size * info.block_bytes;
  const std::int64_t at = i % info.block_size;
  switch (format) {
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      return FloatWeight(format, row, i);
    case Format::kQ4_0:
      return HalfAt(block) * (Nibble(block + 2, at) - 8);
    case Format::kQ4_1:
      return HalfAt(block) * Nibble(block + 4, at) + HalfAt(block + 2);
    case Format::kQ5_0:
      return HalfAt(block) * (Nibble(block + 6, at) + 16 * Bit(block + 2, at) - 16);
    case Format::kQ5_1:
      return HalfAt(block) * (Nibble(block + 8, at) + 16 * Bit(block + 4, at)) + HalfAt(block + 2);
    case Format::kQ8_0:
      return HalfAt(block) * static_cast<std::int8_t>(block[2 + at]);
    case Format::kQ4_K:
    case Format::kQ5_K:
      return KWeight(format, block, at);
    case Format::kQ6_K:
      return SixBitWeight(block, at);
    case Format::kMXFP4:
      return Fp4Weight(block, at);
    case Format::kQ4_0Superblock:
    case Format::kQ4_1Superblock:
    case Format::kQ5_0Superblock:
    case Format::kQ5_1Superblock:
    case Format::kQ8_0Superblock: {
      const bool is_tail = columns > 0 && i / 256 == columns / 256;
      return BlockSuperblockWeight(format, block, is_tail ? columns % 256 / 32 : 8, at);
    }
    case Format::kQ4_KSuperblock:
    case Format::kQ5_KSuperblock:
      return KSuperblockWeight(format, block, at);
    case Format::kQ6_KSuperblock:
      return SixBitSuperblockWeight(block, at);
    case Format::kLowbit2:
    case Format::kLowbit3:
      return LowbitWeight(format, block, at);
    case Format::kSign:
      return HalfAt(block + 32) * (Bit(block, at) != 0 ? -1.0 : 1.0);
  }
  return NAN;
}

std::vector<std::uint8_t> RandomRow(Format format, std::int64_t columns, Random& random) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(RowBytes(format, columns)));
  if (FileFormat(format) != format) {
    const std::vector<std::uint8_t> plain = RandomRow(FileFormat(format), columns, random);
    RepackToSuperblocks(FileFormat(format), plain.data(), 1, columns, row.data());
    return row;
  }
  if (InfoOf(format).activations == ActivationForm::kFloat) {
    const std::int64_t width = InfoOf(format).block_bytes;
    for (std::int64_t i = 0; i < columns; ++i) {
      const float value = random.Uniform(-1.0F, 1.0F);
      std::uint8_t bytes[4];
      std::memcpy(bytes, &value, 4);
      // The upper half of an f32 is a bf16; halves get a random sign, exponent 8..15 and mantissa.
      const auto half = static_cast<std::uint16_t>((random.Bits() & 0x9FFF) | 0x2000);
      if (format == Format::kF16) std::memcpy(bytes, &half, 2);
      const std::uint8_t* source = format == Format::kBF16 ? bytes + 2 : bytes;
      std::memcpy(row.data() + i * width, source, static_cast<std::size_t>(width));
    }
    return row;
  }
  for (std::uint8_t& byte : row) byte = static_cast<std::uint8_t>(random.Bits());
  const std::int64_t block_bytes = InfoOf(format).block_bytes;
  if (format == Format::kMXFP4) {
    for (std::size_t at = 0; at < row.size(); at += 17) {
      row[at] = static_cast<std::uint8_t>(118 + row[at] % 16);
    }
    return row;
  }
  for (std::int64_t at = 0; at < std::ssize(row); at += block_bytes) {
    for (const std::int64_t offset : ScaleOffsets(format)) {
      row[static_cast<std::size_t>(at + offset + 1)] &= 0x9F;
      row[static_cast<std::size_t>(at + offset + 1)] |= 0x20;
    }
  }
  return row;
}

}  // namespace powerinfer::testing
