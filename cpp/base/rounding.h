// Counts of pieces, and sizes that are whole pieces.
#pragma once

#include <concepts>
#include <type_traits>

namespace powerinfer {

/// a / b rounded up, for a >= 0 and b > 0.
template <std::integral T>
constexpr T DivideUp(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

/// The smallest multiple of b that is at least a.
template <std::integral T>
constexpr T RoundUp(T a, std::type_identity_t<T> b) {
  return DivideUp(a, b) * b;
}

}  // namespace powerinfer
