// One bit for each token and neuron of a block: whether the neuron's value is not zero.
#pragma once

#include <cstdint>

namespace powerinfer {

/// Where a block notes which neurons fire: u8[num_tokens, row_bytes], the bit of neuron i of a
/// token is bit i % 8, the lowest first, of byte i / 8 of the token's row. Rows begin as zeros.
/// Without data nobody asks. Whoever sets bits of a token owns all of its row meanwhile.
struct FiredBits {
  std::uint8_t* data = nullptr;
  std::int64_t row_bytes = 0;
  const std::int32_t* tokens = nullptr;  ///< whose row each token has; null: token t has row t
  std::int64_t first_neuron = 0;         ///< whose bit is that of the block's neuron 0

  bool IsWanted() const { return data != nullptr; }
  /// Of the tokens from `first` on.
  FiredBits From(std::int64_t first) const;
  /// Of some of the tokens, for a block whose neurons begin at `neuron`.
  FiredBits Part(const std::int32_t* own_tokens, std::int64_t neuron) const;

  /// The bits of a token with values f32[count], one for each neuron. NaN fires.
  void Set(std::int64_t token, const float* values, std::int64_t count) const;
  /// The same of the neurons ids[0] to ids[count - 1] alone.
  void SetListed(std::int64_t token, const std::int32_t* ids, const float* values,
                 std::int64_t count) const;

 private:
  std::uint8_t* Row(std::int64_t token) const {
    return data + (tokens != nullptr ? tokens[token] : token) * row_bytes;
  }
};

/// counts[i] += 1 for every row in which the bit of neuron i is set: i64[num_neurons] and
/// u8[num_rows, ceil(num_neurons / 8)]. Bits beyond the last neuron are zero.
void CountFired(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t row_bytes,
                std::int64_t* counts);

}  // namespace powerinfer
