// Scratch memory of one engine: named buffers that grow and are kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace powerinfer {

/// What a scratch buffer is for. Operations that call each other use different slots.
enum class Scratch : std::int32_t {
  kActivationRows,  ///< ActivationRow per token
  kQuantized,       ///< int8 values, scales and sums of the input
  kPackedInput,     ///< panels of a blocked product's shared operand
  kThreadBlocks,    ///< per-thread blocks of a blocked product
  kGate,            ///< f32[num_tokens, intermediate_size]: gate, then the activated values
  kUp,              ///< f32[num_tokens, intermediate_size]
  kActiveIds,       ///< i32[intermediate_size]: neurons that may fire
  kSurvivors,       ///< i32[intermediate_size]: of those, the ones that did
  kNeuronValues,    ///< f32[2, intermediate_size]: values and up of listed neurons
  kPartials,        ///< f32[groups, num_tokens, hidden_size]
  kCounts,          ///< i64 per chunk
};
inline constexpr std::size_t kNumScratch = 11;

/// Growable buffers aligned to 64 bytes. Once an operation has seen its largest shape it allocates
/// nothing. Not thread-safe: ask before a parallel region, never inside one.
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

  /// Bytes held by all buffers.
  std::size_t Capacity() const;

 private:
  struct Buffer {
    void* data = nullptr;
    std::size_t size = 0;
  };
  void* Bytes(Scratch slot, std::size_t size);

  std::array<Buffer, kNumScratch> buffers_;
};

}  // namespace powerinfer
