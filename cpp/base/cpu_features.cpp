#include "base/cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace powerinfer {
namespace {

#if defined(__x86_64__)

bool Bit(std::uint32_t word, int bit) { return ((word >> bit) & 1U) != 0U; }

/// XCR0: which register files the operating system saves on a context switch.
std::uint64_t SavedRegisters() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Bit numbers: Intel SDM volume 2A, CPUID leaves 1 and 7; volume 1, 13.3 (XCR0).
CpuFeatures Detect() {
  CpuFeatures found;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  const bool has_xsave = Bit(c, 27);
  const bool has_fma_f16c = Bit(c, 12) && Bit(c, 29) && Bit(c, 28);
  if (!has_xsave || !has_fma_f16c) return found;
  const std::uint64_t saved = SavedRegisters();
  constexpr std::uint64_t kYmm = 0x6;
  constexpr std::uint64_t kZmm = 0xE6;
  if ((saved & kYmm) != kYmm || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.has_avx2 = Bit(b, 5) && Bit(b, 8);
  const bool is_avx512 = Bit(b, 16) && Bit(b, 17) && Bit(b, 30) && Bit(b, 31);
  found.has_avx512 = found.has_avx2 && is_avx512 && (saved & kZmm) == kZmm;
  found.has_avx512_vnni = found.has_avx512 && Bit(c, 11);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return found;
  found.has_avx_vnni = found.has_avx2 && Bit(a, 4);
  found.has_avx512_bf16 = found.has_avx512 && Bit(a, 5);
  return found;
}

#elif defined(__aarch64__)

CpuFeatures Detect() {
  CpuFeatures found;
  found.has_neon = true;  // part of armv8-a
#if defined(__linux__)
  const unsigned long caps = getauxval(AT_HWCAP);
  found.has_dotprod = (caps & HWCAP_ASIMDDP) != 0;
  found.has_fp16 = (caps & HWCAP_ASIMDHP) != 0;
#ifdef HWCAP2_I8MM  // since Linux 5.10
  found.has_i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
#elif defined(__APPLE__)
  found.has_dotprod = true;  // every Apple M processor
  found.has_fp16 = true;
#endif
  return found;
}

#else

CpuFeatures Detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& GetCpuFeatures() {
  static const CpuFeatures features = Detect();
  return features;
}

}  // namespace powerinfer
