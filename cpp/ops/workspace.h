// Scratch memory of one engine: named buffers that grow and are kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace powerinfer {

/// Purposes of scratch buffers. Operations that call each other use different slots.
enum class Scratch : std::int32_t {
  kActivationRows,        ///< ActivationRow per token
  kQuantized,             ///< int8 values, scales and sums of the input
  kPackedInput,           ///< panels of a blocked product's shared operand
  kThreadBlocks,          ///< per-thread blocks of a blocked product
  kGate,                  ///< f32[num_tokens, intermediate_size]: gate, then the activated values
  kUp,                    ///< f32[num_tokens, intermediate_size]
  kActiveIds,             ///< i32[num_tokens, intermediate_size]: neurons a predictor let pass
  kNeuronLists,           ///< per thread: scores and the list of one range of neurons
  kPartials,              ///< f32[ranges, num_tokens, hidden_size]
  kCounts,                ///< i64 per chunk
  kRangeStats,            ///< counters per range
  kPredictorInput,        ///< f32[num_tokens, hidden_size padded]
  kPredictorHidden,       ///< f32[num_tokens, rank padded]
  kRouterLogits,          ///< f32[num_tokens, num_experts]
  kRouteIds,              ///< i32[num_tokens, experts used]
  kRouteWeights,          ///< f32[num_tokens, experts used]
  kExpertPairs,           ///< lists of pairs of expert and token
  kPairWeights,           ///< f32 per pair
  kPairRows,              ///< ActivationRow per pair
  kExpertInput,           ///< f32[num_tokens of an expert, hidden_size]
  kExpertPredictorInput,  ///< likewise
  kExpertOutput,          ///< f32[pairs, hidden_size]
  kConvolution,           ///< f32[num_tokens, channels]: input or output of a convolution
  kStateHeads,            ///< per thread: q, k and z of a head, or the result of a scan
};
inline constexpr std::size_t kNumScratch = 24;

/// Growable buffers aligned to 64 bytes. Once an operation has run with its largest shape it
/// allocates nothing. Not thread-safe: call it before a parallel region, never inside one.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// At least `count` elements of T, uninitialised; what the slot held before is lost.
  template <typename T>
  T* Get(Scratch slot, std::int64_t count) {
    return static_cast<T*>(Bytes(slot, static_cast<std::size_t>(count) * sizeof(T)));
  }

  /// Further buffers, for an operation whose results must last while another one runs.
  Workspace& Nested();

  /// Bytes held by all buffers.
  std::size_t Capacity() const;

 private:
  struct Buffer {
    void* data = nullptr;
    std::size_t size = 0;
  };
  void* Bytes(Scratch slot, std::size_t size);

  std::array<Buffer, kNumScratch> buffers_;
  std::unique_ptr<Workspace> nested_;
};

}  // namespace powerinfer
