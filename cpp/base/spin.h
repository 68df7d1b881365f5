// Waiting without yielding the processor.
#pragma once

namespace powerinfer {

/// Pauses between two reads of the clock.
inline constexpr int kPausesPerClockRead = 32;

/// Tells the processor that this thread spins.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace powerinfer
