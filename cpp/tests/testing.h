// Shared by all tests: doctest, and random numbers that are the same on every platform.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>  // doctest prints strings if they are declared

namespace powerinfer::testing {

/// Deterministic pseudo-random numbers (SplitMix64), the same on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Bits() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// Uniform in [low, high).
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(Bits() >> 40) * 0x1p-24F;
  }

 private:
  std::uint64_t state_;
};

}  // namespace powerinfer::testing
