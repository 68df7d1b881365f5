// The weight formats in double precision, one weight at a time, for comparison with kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/formats.h"
#include "quant/superblock.h"
#include "tests/testing.h"

namespace powerinfer::testing {

/// Value of an IEEE half, computed without f32 tricks.
double HalfValue(std::uint16_t half);

/// Weight i of a row of whole superblocks or of `columns` weights. Exact: every format's weights
/// fit a double.
double WeightAt(Format format, const std::uint8_t* row, std::int64_t i, std::int64_t columns = 0);

/// A width whose last blocks fill no superblock, or 768 for formats that need whole ones.
inline std::int64_t OddWidth(Format format) {
  return InfoOf(FileFormat(format)).block_size == 32 ? 736 : 768;
}

/// A row of `columns` random weights; f16 scales are finite, both signs, all quantized codes occur.
std::vector<std::uint8_t> RandomRow(Format format, std::int64_t columns, Random& random);

}  // namespace powerinfer::testing
