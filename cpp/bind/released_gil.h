// Releasing Python's global lock (GIL): to compute, and to free Python objects.
//
// When Python finalizes, it ends every other thread that requests the GIL by pthread_exit (until
// 3.13), which unwinds the stack and would abort the process at the first C++ function that is
// noexcept. Such a thread waits here for the end of the process instead, as in Python 3.14.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>
#include <utility>

namespace powerinfer {

/// Blocks until the process ends.
[[noreturn]] inline void StayForEver() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Releases the GIL until the end of the block. Unlike nanobind's gil_scoped_release it survives
/// the end of the program.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // how glibc unwinds; leaving this block would abort
      StayForEver();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

/// A reference to a Python object that may be the last one. Freeing the object may need the GIL, as
/// unmapping memory does; unlike nanobind's references this one survives the end of the program.
class LastReference {
 public:
  LastReference() = default;
  /// Takes over a reference.
  explicit LastReference(PyObject* owned) : object_(owned) {}
  LastReference(LastReference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ~LastReference() {
    try {
      Py_XDECREF(object_);
    } catch (...) {  // as above
      StayForEver();
    }
  }
  LastReference(const LastReference&) = delete;
  LastReference& operator=(const LastReference&) = delete;
  LastReference& operator=(LastReference&&) = delete;

 private:
  PyObject* object_ = nullptr;
};

}  // namespace powerinfer
