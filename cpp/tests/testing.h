// A test runner small enough to run under emulators and sanitizers: TEST(Name) { Check(...); }.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace powerinfer::testing {

struct TestCase {
  std::string name;
  std::function<void()> body;
};

/// Every TEST of the program, in no particular order of files.
inline std::vector<TestCase>& AllTests() {
  static std::vector<TestCase> tests;
  return tests;
}

struct Registration {
  Registration(std::string name, std::function<void()> body) {
    AllTests().push_back({std::move(name), std::move(body)});
  }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ends the test with `message` unless the claim holds.
inline void Check(bool claim, const std::string& message) {
  if (!claim) throw Failure(message);
}

/// Ends the test unless the body throws the error; `what` says what it did wrong.
template <typename Error, typename Body>
void CheckThrows(const Body& body, const std::string& what) {
  try {
    body();
  } catch (const Error&) {
    return;
  }
  throw Failure(what + " must be an error");
}

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

#define TEST(Name)                                                                       \
  static void Test##Name();                                                              \
  static const powerinfer::testing::Registration registration_##Name(#Name, Test##Name); \
  static void Test##Name()
