// Activations in the forms that the dot kernels of each format take.
#include <array>
#include <cstdint>
#include <cstring>

#include "ops/linear.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {

TEST_CASE("ActivationsArePreparedInEveryFormThatIsAsked") {
  Random random(13);
  const TestRows x(3, 512, random);
  TestTeam team(1);
  const std::array<Format, 2> all = {Format::kSign, Format::kLowbit2};
  const ActivationRow* rows = PrepareActivations(team.context, x.ReadOnly(), all);
  for (std::int64_t t = 0; t < 3; ++t) {
    const ActivationRow& row = rows[t];
    REQUIRE_MESSAGE((row.quantized.permuted != nullptr && row.sign_bits != nullptr),
                    "a form is missing");
    std::array<std::uint64_t, 8> bits;
    REQUIRE_MESSAGE(row.mean_abs == BestKernels().binarize(x.view.Row(t), 512, bits.data()),
                    "mean magnitude");
    REQUIRE_MESSAGE(std::memcmp(bits.data(), row.sign_bits, sizeof bits) == 0, "sign bits");
    REQUIRE_MESSAGE(row.quantized.permuted[0] == row.quantized.values[0], "permuted values");
  }
  const std::array<Format, 1> only = {Format::kSign};
  rows = PrepareActivations(team.context, x.ReadOnly(), only);
  REQUIRE_MESSAGE((rows[2].quantized.values == nullptr && rows[2].sign_bits != nullptr),
                  "too many forms");
}

TEST_CASE("FloatActivationsOfSeveralTokensLieOnLines") {
  Random random(8);
  constexpr std::int64_t kColumns = 1024;
  const TestRows x(9, kColumns, random);
  TestTeam team(1);
  const std::array<Format, 2> formats = {Format::kF16, Format::kQ4_0};
  for (const std::int64_t offset : {0, 1}) {
    const RowsView<const float> view{x.view.data + offset, 8, kColumns, kColumns};
    const ActivationRow* rows = PrepareActivations(team.context, view, formats);
    for (std::int64_t t = 0; t < view.rows; ++t) {
      const float* values = rows[t].values;
      REQUIRE_MESSAGE(reinterpret_cast<std::uintptr_t>(values) % 64 == 0, "beside a line");
      REQUIRE_MESSAGE((t == 0 || (values - rows[t - 1].values) % 1024 != 0), "whole pages apart");
      REQUIRE_MESSAGE(std::memcmp(values, view.Row(t), kColumns * sizeof(float)) == 0, "values");
      REQUIRE_MESSAGE(rows[t].quantized.values != nullptr, "no int8 values");
    }
  }
}

}  // namespace powerinfer::testing
