// The weight formats in double precision, one weight at a time, for comparison with kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/formats.h"
#include "tests/testing.h"

namespace powerinfer::testing {

/// Value of an IEEE half, computed without f32 tricks.
double HalfValue(std::uint16_t half);

/// Weight i of a row. Exact: every format's weights fit a double.
double WeightAt(Format format, const std::uint8_t* row, std::int64_t i);

/// A row of `columns` random weights; f16 scales are finite, both signs, all quantized codes occur.
std::vector<std::uint8_t> RandomRow(Format format, std::int64_t columns, Random& random);

}  // namespace powerinfer::testing
