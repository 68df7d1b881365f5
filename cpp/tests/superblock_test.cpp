// Repacking rows of files as superblocks, and back.
#include "quant/superblock.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/ops_testing.h"
#include "tests/reference_formats.h"
#include "tests/testing.h"

namespace powerinfer::testing {

TEST_CASE("SuperblocksRoundTrip") {
  Random random(16);
  for (const Format format : AllFormats()) {
    const Format layout = SuperblockFormat(format);
    if (layout == format) continue;
    for (const std::int64_t columns : {256, 288, 480, 576, 768}) {
      if (!CanRepack(format, columns)) continue;
      const std::string where =
          std::string(InfoOf(format).name) + ", " + std::to_string(columns) + " columns";
      const auto plain = RandomRow(format, 2 * columns, random);
      std::vector<std::uint8_t> packed(plain.size());
      std::vector<std::uint8_t> back(plain.size());
      RepackToSuperblocks(format, plain.data(), 2, columns, packed.data());
      RepackFromSuperblocks(format, packed.data(), 2, columns, back.data());
      REQUIRE_MESSAGE(back == plain, where, ": repacking there and back changes bytes");
      for (std::int64_t i = 0; i < 2 * columns; ++i) {
        const std::uint8_t* row = packed.data() + i / columns * RowBytes(layout, columns);
        REQUIRE_MESSAGE(
            WeightAt(format, plain.data(), i) == WeightAt(layout, row, i % columns, columns), where,
            ": weight ", i, " moved");
      }
    }
  }
}

TEST_CASE("RowsAreRepackedIfTheyHoldASuperblock") {
  REQUIRE((CanRepack(Format::kQ4_1, 256) && CanRepack(Format::kQ4_1, 288)));
  REQUIRE(!CanRepack(Format::kQ4_1, 224));
  REQUIRE(!CanRepack(Format::kQ4_1, 300));
  REQUIRE((CanRepack(Format::kQ4_K, 512) && !CanRepack(Format::kQ4_K, 288)));
  REQUIRE((!CanRepack(Format::kF16, 512) && !CanRepack(Format::kMXFP4, 512)));
  REQUIRE(!CanRepack(Format::kQ8_0Superblock, 512));
}

TEST_CASE("SuperblocksNameTheirFormats") {
  int num_layouts = 0;
  for (const Format format : AllFormats()) {
    const std::string name(InfoOf(format).name);
    const Format layout = SuperblockFormat(format);
    REQUIRE_MESSAGE(FileFormat(layout) == FileFormat(format), name);
    if (layout == format) continue;
    ++num_layouts;
    REQUIRE_MESSAGE((FileFormat(layout) == format && FileFormat(format) == format), name);
    REQUIRE_MESSAGE(std::string(InfoOf(layout).name) == name + "_superblock", name);
    const std::int64_t columns = OddWidth(format);
    REQUIRE_MESSAGE(RowBytes(layout, columns) == RowBytes(format, columns), name, ": other size");
  }
  REQUIRE_MESSAGE(num_layouts == 8, "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K");
}

}  // namespace powerinfer::testing
