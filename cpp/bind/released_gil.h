// Computing without Python's global lock (GIL).
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace powerinfer {

/// Gives the GIL up, and takes it back at the end of the block.
///
/// Unlike nanobind's gil_scoped_release it survives the end of the program: when Python finalizes,
/// it ends every other thread that asks for the GIL by pthread_exit (until 3.13), which unwinds the
/// stack and would abort the process at the first C++ function that is noexcept. Such a thread
/// stays here instead, as Python 3.14 makes it do, until the process is gone.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // how glibc unwinds; leaving this block would abort
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace powerinfer
