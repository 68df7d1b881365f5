// What the choice of a token asks of all logits, in a pass or two over them.
#pragma once

#include <cstdint>
#include <span>

namespace powerinfer {

/// True if no value is NaN or infinite.
bool AllFinite(std::span<const float> values);

/// Writes the ids of as many of the largest logits as there is room for, at most all: largest
/// first, lower id first among equals, NaN last.
void WriteLargest(std::span<const float> logits, std::span<std::int64_t> ids);

}  // namespace powerinfer
