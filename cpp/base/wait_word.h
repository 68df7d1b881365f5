// A word that threads sleep on until it changes.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace powerinfer {

/// std::atomic::wait yields a few times before it sleeps. On a busy machine each yield gives away
/// the rest of a thread's turn, and with it its claim to the next one: among spinning processes a
/// worker that yielded got 0.2 of a core; one that sleeps at once gets all it can use.
class WaitWord {
 public:
  std::atomic<std::uint32_t> value{0};

  /// Sleeps while the word is `old`; may return early.
  void SleepWhile(std::uint32_t old) {
#if defined(__linux__)
    num_asleep_.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    num_asleep_.fetch_sub(1, std::memory_order_relaxed);
#else
    value.wait(old, std::memory_order_acquire);
#endif
  }

  /// Wakes all sleepers, after a sequentially consistent change of the word: either the sleeper
  /// sees the change, or this call sees the sleeper.
  void WakeAll() {
#if defined(__linux__)
    if (num_asleep_.load(std::memory_order_seq_cst) == 0) return;
    ::syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    value.notify_all();
#endif
  }

 private:
#if defined(__linux__)
  std::atomic<std::int32_t> num_asleep_{0};
#endif
};

#if defined(__linux__)
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t),
              "as the system wants it");
#endif

}  // namespace powerinfer
