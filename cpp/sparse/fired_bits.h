// One bit for each token and neuron of a block: whether the neuron's value is not zero.
#pragma once

#include <cstdint>

namespace powerinfer {

/// Bits in which a block records the neurons that fire: u8[num_tokens, row_bytes]. The bit of
/// neuron i of a token is bit i % 8, the lowest first, of byte i / 8 of the token's row. Rows begin
/// as zeros. Without data nothing is recorded. A thread that sets bits of a token owns all of its
/// row meanwhile.
struct FiredBits {
  std::uint8_t* data = nullptr;
  std::int64_t row_bytes = 0;
  const std::int32_t* tokens = nullptr;  ///< row of each token; null: token t has row t
  std::int64_t first_neuron = 0;         ///< its bit is that of the block's neuron 0

  bool IsWanted() const { return data != nullptr; }
  /// The bits of the tokens from `first` on.
  FiredBits From(std::int64_t first) const;
  /// The bits of some of the tokens, for a block whose neurons begin at `neuron`.
  FiredBits Part(const std::int32_t* own_tokens, std::int64_t neuron) const;

  /// Sets the bits of a token by its values f32[count], one for each neuron. NaN fires.
  void Set(std::int64_t token, const float* values, std::int64_t count) const;
  /// The same for the neurons ids[0] to ids[count - 1] alone.
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
