// Matrices, rows and teams for tests of operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "kernels/kernel_table.h"
#include "ops/linear.h"
#include "ops/op_context.h"
#include "ops/workspace.h"
#include "tests/reference_formats.h"
#include "tests/testing.h"

namespace powerinfer::testing {

inline std::vector<Format> AllFormats() {
  std::vector<Format> formats;
  for (std::int32_t i = 0; i < kNumFormats; ++i) formats.push_back(static_cast<Format>(i));
  return formats;
}

inline std::vector<float> RandomFloats(std::int64_t n, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.Uniform(-1.0F, 1.0F);
  return values;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The best kernels of this CPU, for tests of results that no kernel may change.
inline const KernelTable& BestKernels() { return *AvailableKernels().front(); }

/// True if prompt rows round activations to bfloat16 before products with this format.
inline bool RoundsToBf16(const KernelTable& kernels, Format format) {
  return &kernels.GemmFor(format) == &kernels.bf16;
}

/// A separate team with scratch memory.
struct TestTeam {
  ThreadTeam team;
  Workspace workspace;
  OpContext context;

  explicit TestTeam(std::int32_t num_threads, const KernelTable& kernels = BestKernels(),
                    RowKind rows = RowKind::kDecode)
      : team(num_threads), context{team, workspace, kernels, rows} {}
  TestTeam(const TestTeam&) = delete;
  TestTeam& operator=(const TestTeam&) = delete;
};

/// A random matrix whose rows stand a little apart.
struct TestMatrix {
  std::vector<std::uint8_t> data;
  std::vector<double> weights;
  MatrixView view;

  TestMatrix(Format format, std::int64_t rows, std::int64_t columns, Random& random) {
    const std::int64_t stride = RowBytes(format, columns) + 4;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::vector<std::uint8_t> row = RandomRow(format, columns, random);
      data.insert(data.end(), row.begin(), row.end());
      data.resize(static_cast<std::size_t>((r + 1) * stride));
      for (std::int64_t i = 0; i < columns; ++i) {
        weights.push_back(WeightAt(format, row.data(), i, columns));
      }
    }
    view = {format, data.data(), rows, columns, stride};
  }
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;

  double At(std::int64_t row, std::int64_t column) const {
    return weights[static_cast<std::size_t>(row * view.columns + column)];
  }
};

/// Rows of f32 with a gap between them: random, or NaN to be overwritten.
struct TestRows {
  std::vector<float> data;
  RowsView<float> view;

  TestRows(std::int64_t rows, std::int64_t columns)
      : data(static_cast<std::size_t>(rows * (columns + 3)),
             std::numeric_limits<float>::quiet_NaN()),
        view{data.data(), rows, columns, columns + 3} {}
  TestRows(std::int64_t rows, std::int64_t columns, Random& random) : TestRows(rows, columns) {
    for (float& value : data) value = random.Uniform(-1.0F, 1.0F);
  }
  TestRows(const TestRows&) = delete;
  TestRows& operator=(const TestRows&) = delete;

  RowsView<const float> ReadOnly() const {
    return {view.data, view.rows, view.columns, view.stride};
  }
};

}  // namespace powerinfer::testing
