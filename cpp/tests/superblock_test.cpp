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
    const std::string where(InfoOf(format).name);
    const auto plain = RandomRow(format, 2 * 768, random);
    std::vector<std::uint8_t> packed(plain.size());
    std::vector<std::uint8_t> back(plain.size());
    RepackToSuperblocks(format, plain.data(), 2, 768, packed.data());
    RepackFromSuperblocks(format, packed.data(), 2, 768, back.data());
    REQUIRE_MESSAGE(back == plain, where, ": repacking there and back changes bytes");
    for (std::int64_t i = 0; i < 2 * 768; ++i) {
      REQUIRE_MESSAGE(WeightAt(format, plain.data(), i) == WeightAt(layout, packed.data(), i),
                      where, ": weight ", i, " moved");
    }
  }
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
    REQUIRE_MESSAGE(RowBytes(layout, 768) == RowBytes(format, 768), name, ": other size");
  }
  REQUIRE_MESSAGE(num_layouts == 4, "Q4_0, Q4_K, Q5_K, Q6_K");
}

}  // namespace powerinfer::testing
