// Objects that Python holds between calls. Each handle keeps the memory it points into alive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/page_memory.h"
#include "base/thread_team.h"
#include "bind/arrays.h"
#include "bind/released_gil.h"
#include "bind/row_kinds.h"
#include "bind/step_record.h"
#include "ops/kv_cache.h"
#include "ops/lazy_matrix.h"
#include "ops/linear.h"
#include "ops/rope.h"
#include "ops/shared_team.h"
#include "sparse/ffn.h"

namespace powerinfer {

/// A team with its scratch memory and kernels; runs one operation at a time, whichever Python
/// thread calls.
struct TeamHandle {
  /// kernels: a name, or none for the best available. joins: share the threads with the other
  /// handles of this process that joined with the same arguments; each records its own steps.
  /// Raises ValueError for names that this CPU or build does not have.
  TeamHandle(std::int32_t num_threads, const std::optional<std::string>& kernels, bool joins);

  /// Runs body(context) without the GIL, and spoils the step being recorded.
  template <typename Body>
  void Run(const Body& body) {
    Spoil();
    const ReleasedGil released;
    shared.Run(body);
  }

  /// The step being recorded cannot run again: what follows depends on numbers that Python sees.
  void Spoil() {
    if (record != nullptr && record->IsRecordingHere()) record->Spoil();
  }

  /// Runs body(context, stats) without the GIL and adds it to the step being recorded, if any. The
  /// record keeps what the body holds by value, and `kept`: Python objects and objects bound to
  /// one. Returns the counts.
  template <typename Body, typename... Kept>
  FFNStats RunCounted(const Body& body, const Kept&... kept) {
    FFNStats stats;
    {
      const ReleasedGil released;
      shared.Run([&](const OpContext& context) { body(context, &stats); });
    }
    if (record != nullptr && record->IsRecordingHere()) {
      record->Add(body, {PythonObject(kept)...});
    }
    return stats;
  }

  /// The same for body(context), which counts nothing.
  template <typename Body, typename... Kept>
  void RunRecorded(const Body& body, const Kept&... kept) {
    RunCounted([body](const OpContext& context, FFNStats*) { body(context); }, kept...);
  }

  std::shared_ptr<SharedTeam> owner;
  SharedTeam& shared;            ///< of `owner`
  StepRecord* record = nullptr;  ///< the step that a thread is recording, or null

 private:
  template <typename T>
  static nanobind::object PythonObject(const T& kept) {
    if constexpr (std::is_base_of_v<nanobind::handle, T>) {
      return nanobind::borrow(kept);
    } else {
      return nanobind::find(kept);
    }
  }
};

/// f32[n].
struct VectorHandle {
  explicit VectorHandle(Array<const float, 1> values);

  const float* Data() const { return array.data(); }
  std::int64_t Length() const { return Size(array, 0); }
  /// Data() of a vector that must have `length` entries; null stays null. Raises ShapeError.
  static const float* Checked(const char* what, const VectorHandle* vector, std::int64_t length);

  Array<const float, 1> array;
};

/// A weight matrix in memory that numpy owns (usually a mapped file) or in an arena.
struct MatrixHandle {
  MatrixHandle(Array<const std::uint8_t, 1> data, const std::string& format, std::int64_t rows,
               std::int64_t columns);
  MatrixHandle(ArenaBlock memory, const MatrixView& matrix)
      : view(matrix), block(std::move(memory)) {}

  /// A matrix of experts; `sources` keep what it is filled from.
  MatrixHandle(std::shared_ptr<LazyMatrix> experts, nanobind::object sources)
      : view(experts->View()), lazy(std::move(experts)), sources_object(std::move(sources)) {}

  MatrixView view;
  LastReference owner;                 // of `array`, so that it outlives it
  Array<const std::uint8_t, 1> array;  // empty if the matrix lies in `block` or is lazy
  ArenaBlock block;
  std::shared_ptr<LazyMatrix> lazy;  ///< null, or what fills rows of `view` before they are read
  nanobind::object sources_object;
};

/// The matrix with all its rows filled, for operations that do not know experts.
const MatrixView& WholeView(TeamHandle& team, const MatrixHandle& matrix);

struct RopeHandle {
  RopeHandle(Array<const float, 2> cos, Array<const float, 2> sin, bool is_interleaved);

  RopeView view;
  Array<const float, 2> cos_array;
  Array<const float, 2> sin_array;
};

struct BatchHandle {
  BatchHandle(Array<const std::int32_t, 1> positions, Array<const std::int32_t, 1> sequences,
              Array<const std::int32_t, 2> block_tables, RowMarks is_prompt);

  /// Sets the slots of states that each sequence reads and writes. Raises ShapeError.
  void SetStates(Array<const std::int32_t, 1> sources, Array<const std::int32_t, 1> targets);

  BatchView view;
  Array<const std::int32_t, 1> positions_array;
  Array<const std::int32_t, 1> sequences_array;
  Array<const std::int32_t, 2> tables_array;
  RowMarks marks_array;
  Array<const std::int32_t, 1> sources_array;  // empty for models without state
  Array<const std::int32_t, 1> targets_array;
};

/// Format by its lower-case name; raises ValueError.
Format FormatByName(const std::string& name);

}  // namespace powerinfer
