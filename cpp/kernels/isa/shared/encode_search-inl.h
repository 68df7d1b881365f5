// Searches for the scale of a group with the least sum of weighted squared errors: several scales
// choose codes, least squares fit the scale to the codes, the best fit is refined.
#pragma once

#include <cstdint>

#include "kernels/isa/shared/encode_tile-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Starting points of the searches, in codes: by how much the numbers' range exceeds that of all
/// codes, and how far the first code lies above the smallest number. Found by trying; quantization
/// errors of weights fall slowly with more of them.
constexpr float kMoreCodes[] = {-1.0F, -0.4F, 0.2F, 0.8F, 1.4F, 2.0F};
constexpr float kFirstCodes[] = {-0.4F, 0.0F, 0.4F, 0.8F};
constexpr float kMoreSignedCodes[] = {-3.0F, -2.5F, -2.0F, -1.5F, -1.0F, -0.5F, 0.0F,
                                      0.5F,  1.0F,  1.5F,  2.0F,  2.5F,  3.0F};
constexpr int kRefinements = 2;

/// Number = scale * code + base, and the sum of weighted squared errors.
struct Fit {
  Lanes scale, base, error;

  ENCODE_INLINE void Keep(const Fit& other) {
    const IntLanes is_better = other.error < error;
    scale = is_better ? other.scale : scale;
    base = is_better ? other.base : base;
    error = is_better ? other.error : error;
  }
};

/// Sums over a group: of weights, and of weights times numbers.
struct GroupSums {
  Lanes weights, numbers;
};

/// To the nearest whole number in [low, high], ties to even.
ENCODE_INLINE void RoundBetween(Lanes* value, float low, float high) {
  constexpr float kWhole = 0x1.8p23F;  // floats of this size have no fraction
  Lanes v = *value;
  v = v < low ? Lanes{} + low : v;
  v = v > high ? Lanes{} + high : v;
  *value = (v + kWhole) - kWhole;
}

/// 1 / step; 0 for steps that are negligible against numbers of size 1.
ENCODE_INLINE void InvertSteps(const Lanes& step, Lanes* inverse) {
  const Lanes size = reinterpret_cast<Lanes>(reinterpret_cast<IntLanes>(step) & 0x7FFFFFFF);
  *inverse = size > kTinyNumber ? 1.0F / step : Lanes{};
}

/// The nearest codes in [low, high].
template <int kSize>
ENCODE_INLINE void NearestCodes(const GroupPart<kSize>& part, const Lanes& base,
                                const Lanes& inverse, float low, float high, Lanes* codes) {
  for (int i = 0; i < kSize; ++i) {
    codes[i] = (part.X(i) - base) * inverse;
    RoundBetween(codes + i, low, high);
  }
}

template <int kSize>
ENCODE_INLINE void FindError(const GroupPart<kSize>& part, const Lanes* codes, Fit* fit) {
  Lanes error{};
  for (int i = 0; i < kSize; ++i) {
    const Lanes off = (fit->scale * codes[i] + fit->base) - part.X(i);
    error += part.W(i) * off * off;
  }
  fit->error = error;
}

/// Codes 0..last for this base and inverse scale, and the fit to them. kIsBounded: base <= 0.
template <int kSize, bool kIsBounded>
ENCODE_INLINE void TryOffset(const GroupPart<kSize>& part, const GroupSums& sums, const Lanes& base,
                             const Lanes& inverse, float last, Fit* best) {
  Lanes codes[kSize];
  Lanes sum{}, squares{}, products{};
  NearestCodes<kSize>(part, base, inverse, 0.0F, last, codes);
  for (int i = 0; i < kSize; ++i) {
    const Lanes weighted = part.W(i) * codes[i];
    sum += weighted;
    squares += weighted * codes[i];
    products += weighted * part.X(i);
  }
  const Lanes spread = sums.weights * squares - sum * sum;
  const IntLanes is_spread = spread > 0.0F;
  Fit fit;
  fit.scale = is_spread ? (sums.weights * products - sums.numbers * sum) / spread : Lanes{};
  fit.base =
      is_spread ? (squares * sums.numbers - sum * products) / spread : sums.numbers / sums.weights;
  if constexpr (kIsBounded) {
    const IntLanes is_above = fit.base > 0.0F;
    const Lanes alone = squares > 0.0F ? products / squares : Lanes{};
    fit.scale = is_above ? alone : fit.scale;
    fit.base = is_above ? Lanes{} : fit.base;
  }
  fit.scale = fit.scale < 0.0F ? Lanes{} : fit.scale;
  FindError<kSize>(part, codes, &fit);
  best->Keep(fit);
}

/// Scale and base for codes 0..last.
template <int kSize, bool kIsBounded>
ENCODE_INLINE void FitOffset(const GroupPart<kSize>& part, float last, GroupSums* sums, Fit* best) {
  Lanes low = part.X(0);
  Lanes high = low;
  sums->weights = Lanes{};
  sums->numbers = Lanes{};
  for (int i = 0; i < kSize; ++i) {
    const Lanes x = part.X(i);
    low = x < low ? x : low;
    high = x > high ? x : high;
    sums->weights += part.W(i);
    sums->numbers += part.W(i) * x;
  }
  if constexpr (kIsBounded) low = low > 0.0F ? Lanes{} : low;
  const Lanes range = high - low;
  const Lanes unit = range / last;
  Lanes inverse;
  InvertSteps(range, &inverse);
  *best = {Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
  for (const float first : kFirstCodes) {
    for (const float more : kMoreCodes) {
      TryOffset<kSize, kIsBounded>(part, *sums, low + unit * first, inverse * (last + more), last,
                                   best);
    }
  }
  for (int i = 0; i < kRefinements; ++i) {
    InvertSteps(best->scale, &inverse);
    TryOffset<kSize, kIsBounded>(part, *sums, Lanes(best->base), inverse, last, best);
  }
}

/// Codes low..high for this inverse scale, and the scale that fits them.
template <int kSize>
ENCODE_INLINE void TrySigned(const GroupPart<kSize>& part, const Lanes& inverse, float low,
                             float high, Fit* best) {
  Lanes codes[kSize];
  Lanes squares{}, products{};
  NearestCodes<kSize>(part, Lanes{}, inverse, low, high, codes);
  for (int i = 0; i < kSize; ++i) {
    const Lanes weighted = part.W(i) * codes[i];
    squares += weighted * codes[i];
    products += weighted * part.X(i);
  }
  Fit fit;
  fit.scale = squares > 0.0F ? products / squares : Lanes{};
  fit.base = Lanes{};
  FindError<kSize>(part, codes, &fit);
  best->Keep(fit);
}

/// The scale, of any sign, for codes low..high: the largest number has about the lowest code.
template <int kSize>
ENCODE_INLINE void FitSigned(const GroupPart<kSize>& part, float low, float high, Fit* best) {
  Lanes largest{};
  Lanes size{};
  for (int i = 0; i < kSize; ++i) {
    const Lanes x = part.X(i);
    const Lanes own = reinterpret_cast<Lanes>(reinterpret_cast<IntLanes>(x) & 0x7FFFFFFF);
    largest = own > size ? x : largest;
    size = own > size ? own : size;
  }
  Lanes inverse;
  InvertSteps(largest, &inverse);
  *best = {Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
  for (const float more : kMoreSignedCodes) {
    TrySigned<kSize>(part, inverse * (low - more), low, high, best);
  }
  for (int i = 0; i < kRefinements; ++i) {
    InvertSteps(best->scale, &inverse);
    TrySigned<kSize>(part, inverse, low, high, best);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
