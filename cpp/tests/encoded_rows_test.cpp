// Rows of weights in the encoding of files.
#include "hybrid/encoded_rows.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "quant/superblock.h"
#include "tests/ffn_testing.h"

namespace powerinfer::testing {
namespace {

TEST_CASE("EncodedRowsAreThoseOfTheFile") {
  Random random(5);
  ThreadTeam team(3);
  const std::vector<std::int32_t> ids = {40, 0, 3, 3, 17};
  for (const Format format : AllFormats()) {
    const std::int64_t columns = OddWidth(format);
    const TestMatrix source(FileFormat(format), 41, columns, random);
    const std::int64_t row_bytes = RowBytes(source.view.format, columns);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(41 * row_bytes));
    MatrixView matrix = source.view;
    if (format != source.view.format) {
      for (std::int64_t r = 0; r < 41; ++r) {
        RepackToSuperblocks(source.view.format, source.view.Row(r), 1, columns,
                            packed.data() + r * row_bytes);
      }
      matrix = {format, packed.data(), 41, columns, row_bytes};
    }
    std::vector<std::uint8_t> out(ids.size() * static_cast<std::size_t>(row_bytes));
    CopyEncodedRows(team, matrix, ids, out.data());
    for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
      const std::uint8_t* row = source.view.Row(ids[static_cast<std::size_t>(i)]);
      REQUIRE_MESSAGE(
          std::memcmp(row, out.data() + i * row_bytes, static_cast<std::size_t>(row_bytes)) == 0,
          std::string(InfoOf(format).name), ": row differs");
    }
    const std::vector<std::int32_t> bad = {0, 41};
    REQUIRE_THROWS_AS_MESSAGE(CopyEncodedRows(team, matrix, bad, out.data()), std::out_of_range,
                              "a row out of range");
  }
}

}  // namespace
}  // namespace powerinfer::testing
