// Calls with prompt and decode rows, cut where the kind changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "bind/arrays.h"
#include "ops/op_context.h"

namespace powerinfer {

/// Marks the prompt rows of a call; none: all are decode rows.
using RowMarks = std::optional<Array<const bool, 1>>;

/// The marks, or null if there are none. Raises ShapeError unless there is one per row.
inline const bool* CheckedMarks(const RowMarks& marks, std::int64_t num_rows) {
  if (!marks) return nullptr;
  if (Size(*marks, 0) != num_rows) {
    RaiseShapeError("is_prompt has " + std::to_string(Size(*marks, 0)) + " entries, must have " +
                    std::to_string(num_rows) + ", one per row");
  }
  return marks->data();
}

/// Calls body(context for the kind, first row, number of rows) for the longest runs of one kind, in
/// order; at least once, for no rows too.
template <typename Body>
void ForRowKinds(const OpContext& context, const bool* marks, std::int64_t num_rows,
                 const Body& body) {
  std::int64_t first = 0;
  do {
    const bool is_prompt = marks != nullptr && first < num_rows && marks[first];
    const bool* end =
        marks == nullptr ? nullptr : std::find(marks + first, marks + num_rows, !is_prompt);
    const std::int64_t next = marks == nullptr ? num_rows : end - marks;
    body(context.For(is_prompt ? RowKind::kPrompt : RowKind::kDecode), first, next - first);
    first = next;
  } while (first < num_rows);
}

}  // namespace powerinfer
