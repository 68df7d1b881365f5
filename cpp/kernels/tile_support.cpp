// Detection of AMX tiles. Compiled for the base instruction set: it runs before any check.
#include "kernels/gemm.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace powerinfer {

#if defined(__x86_64__) && defined(__linux__)

namespace {

constexpr std::uint32_t kAmxBf16Bit = 1U << 22;     // leaf 7.0 edx
constexpr std::uint32_t kAmxTileBit = 1U << 24;     // leaf 7.0 edx
constexpr std::uint32_t kAvx512Bf16Bit = 1U << 5;   // leaf 7.1 eax
constexpr std::uint32_t kOsXsaveBit = 1U << 27;     // leaf 1 ecx
constexpr std::uint32_t kTileStateBits = 3U << 17;  // XCR0: tile configuration and tile data
constexpr long kRequestStatePermission = 0x1023;    // ARCH_REQ_XCOMP_PERM
constexpr long kTileDataFeature = 18;               // XFEATURE_XTILEDATA

bool CpuHasAmx() {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  std::uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsaveBit) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16Bit) == 0 || (d & kAmxTileBit) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  return (a & kAvx512Bf16Bit) != 0;
}

bool KernelSavesTiles() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileStateBits) == kTileStateBits;
}

}  // namespace

bool IsAmxUsable() {
  static const bool is_usable =
      CpuHasAmx() && KernelSavesTiles() &&
      syscall(SYS_arch_prctl, kRequestStatePermission, kTileDataFeature) == 0;
  return is_usable;
}

#else

bool IsAmxUsable() { return false; }

#endif

}  // namespace powerinfer
