// What Python holds on to between calls. Each handle keeps the memory it points into alive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/page_memory.h"
#include "base/thread_team.h"
#include "bind/arrays.h"
#include "bind/released_gil.h"
#include "bind/row_kinds.h"
#include "ops/kv_cache.h"
#include "ops/linear.h"
#include "ops/rope.h"
#include "ops/shared_team.h"
#include "sparse/ffn.h"

namespace powerinfer {

/// A team with its scratch memory and kernels; one operation at a time, whichever Python thread
/// asks.
struct TeamHandle {
  /// kernels: a name, or none for the best there are. Raises ValueError for names that this CPU or
  /// build does not have.
  TeamHandle(std::int32_t num_threads, const std::optional<std::string>& kernels);

  /// Runs body(context) without the GIL.
  template <typename Body>
  void Run(const Body& body) {
    const ReleasedGil released;
    shared.Run(body);
  }

  SharedTeam shared;
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

  MatrixView view;
  Array<const std::uint8_t, 1> array;  // empty if the matrix lies in `block`
  ArenaBlock block;
};

struct RopeHandle {
  RopeHandle(Array<const float, 2> cos, Array<const float, 2> sin, bool is_interleaved);

  RopeView view;
  Array<const float, 2> cos_array;
  Array<const float, 2> sin_array;
};

struct BatchHandle {
  BatchHandle(Array<const std::int32_t, 1> positions, Array<const std::int32_t, 1> sequences,
              Array<const std::int32_t, 2> block_tables, RowMarks is_prompt);

  BatchView view;
  Array<const std::int32_t, 1> positions_array;
  Array<const std::int32_t, 1> sequences_array;
  Array<const std::int32_t, 2> tables_array;
  RowMarks marks_array;
};

/// Format by its lower-case name; raises ValueError.
Format FormatByName(const std::string& name);

}  // namespace powerinfer
