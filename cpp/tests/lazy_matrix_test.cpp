// Matrices of experts that are filled when these are chosen equal those that are there at once.
#include "ops/lazy_matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/mapped_pages.h"
#include "quant/superblock.h"
#include "tests/experts_testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kRows = 40;

/// Rows of experts without gaps, as in a file.
struct FileRows {
  std::vector<std::uint8_t> data;
  MatrixView view;

  FileRows(Format format, std::int64_t columns, Random& random) {
    for (std::int64_t row = 0; row < kExperts * kRows; ++row) {
      const std::vector<std::uint8_t> bytes = RandomRow(format, columns, random);
      data.insert(data.end(), bytes.begin(), bytes.end());
    }
    view = {format, data.data(), kExperts * kRows, columns, RowBytes(format, columns)};
  }
  std::vector<MatrixView> Pieces() const {
    std::vector<MatrixView> pieces;
    for (std::int64_t e = 0; e < kExperts; ++e) pieces.push_back(view.Part(e, kExperts));
    return pieces;
  }
};

bool HasRows(const MatrixView& lazy, const MatrixView& file, std::int64_t expert) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(file.row_bytes));
  for (std::int64_t i = expert * kRows; i < (expert + 1) * kRows; ++i) {
    if (lazy.format != file.format) {
      RepackFromSuperblocks(file.format, lazy.Row(i), 1, file.columns, row.data());
    } else {
      std::memcpy(row.data(), lazy.Row(i), row.size());
    }
    if (std::memcmp(row.data(), file.Row(i), row.size()) != 0) return false;
  }
  return true;
}

bool IsZero(const MatrixView& lazy, std::int64_t expert) {
  const std::uint8_t* data = lazy.Row(expert * kRows);
  return std::all_of(data, data + kRows * lazy.row_bytes, [](auto byte) { return byte == 0; });
}

/// Fills one matrix.
class MatrixFiller final : public ExpertFiller {
 public:
  explicit MatrixFiller(LazyMatrix& matrix) : matrix_(matrix) {}
  void Fill(const OpContext& context, std::span<const std::int32_t> experts) const override {
    for (const std::int32_t expert : experts) matrix_.Fill(context, expert);
  }

 private:
  LazyMatrix& matrix_;
};

}  // namespace

TEST_CASE("LazyMatrixFillsExpertsOnce") {
  Random random(1);
  for (const Format format : {Format::kF32, Format::kQ4_0, Format::kQ8_0, Format::kQ6_K}) {
    const FileRows file(format, OddWidth(format), random);
    const bool is_repacked = SuperblockFormat(format) != format;
    for (const bool is_merged : {false, true}) {
      TestTeam team(2);
      Arena arena;
      const auto pieces = is_merged ? std::vector{file.view} : file.Pieces();
      LazyMatrix lazy(pieces, kRows, arena, is_repacked);
      REQUIRE(lazy.View().rows == kExperts * kRows);
      REQUIRE(lazy.View().format == SuperblockFormat(format));
      lazy.Fill(team.context, 2);
      lazy.Fill(team.context, 2);
      REQUIRE(HasRows(lazy.View(), file.view, 2));
      for (const std::int64_t expert : {0, 1, 3}) REQUIRE(IsZero(lazy.View(), expert));
      REQUIRE(!lazy.IsFull());
      const std::vector<std::int32_t> rows = {-1, kRows, 2 * kRows - 1, kExperts * kRows};
      lazy.FillRows(team.context, rows);
      REQUIRE(HasRows(lazy.View(), file.view, 1));
      for (const std::int64_t expert : {0, 3}) REQUIRE(IsZero(lazy.View(), expert));
      lazy.FillAll(team.context);
      REQUIRE(lazy.IsFull());
      for (std::int64_t e = 0; e < kExperts; ++e) REQUIRE(HasRows(lazy.View(), file.view, e));
    }
  }
}

TEST_CASE("LazyMatrixOfChosenExpertsGivesTheBitsOfAPlainOne") {
  for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
    ExpertsOptions o;
    o.ffn.rest = Format::kQ4_0;
    o.ffn.hidden_size = 256;
    o.ffn.intermediate_size = 160;
    Random random(6);
    ExpertsBlock block(o, random);
    const TestRows x(2, o.ffn.hidden_size, random);
    Arena arena;
    LazyMatrix lazy({block.view.up}, o.ffn.intermediate_size, arena, true);
    LazyMatrix filled({block.view.up}, o.ffn.intermediate_size, arena, true);
    const MatrixFiller filler(lazy);
    TestTeam team(2, BestKernels(), rows);
    filled.FillAll(team.context);
    TestRows out(2, o.ffn.hidden_size);
    TestRows expected(2, o.ffn.hidden_size);
    block.view.up = filled.View();
    RunExperts(team.context, x.ReadOnly(), x.ReadOnly(), block.view, {}, expected.view, nullptr);
    block.view.up = lazy.View();
    block.view.filler = &filler;
    RunExperts(team.context, x.ReadOnly(), x.ReadOnly(), block.view, {}, out.view, nullptr);
    REQUIRE(SameBits(out.data, expected.data));
    REQUIRE(!lazy.IsFull());
  }
}

TEST_CASE("LazyMatrixIsFilledByTwoTeams") {
  Random random(2);
  const FileRows file(Format::kQ4_0, 512, random);
  Arena arena;
  LazyMatrix lazy(file.Pieces(), kRows, arena, true);
  const auto fill = [&] {
    TestTeam team(2);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      lazy.Fill(team.context, e);
      if (!HasRows(lazy.View(), file.view, e)) throw std::logic_error("not filled");
    }
  };
  std::thread other(fill);
  fill();
  other.join();
}

TEST_CASE("LazyMatrixRejectsPiecesThatDoNotFit") {
  Random random(3);
  const FileRows file(Format::kF32, 256, random);
  const FileRows other(Format::kF32, 512, random);
  const FileRows packed(Format::kQ8_0, 256, random);
  Arena arena;
  using Views = std::vector<MatrixView>;
  REQUIRE_THROWS_AS(LazyMatrix(Views{}, kRows, arena, false), std::invalid_argument);
  REQUIRE_THROWS_AS(LazyMatrix(Views{file.view}, 33, arena, false), std::invalid_argument);
  REQUIRE_THROWS_AS(LazyMatrix(Views{file.view, other.view}, kExperts * kRows, arena, false),
                    std::invalid_argument);
  REQUIRE_THROWS_AS(LazyMatrix(Views{file.view, packed.view}, kExperts * kRows, arena, false),
                    std::invalid_argument);
  REQUIRE_THROWS_AS(LazyMatrix(Views{file.view}, kRows, arena, true), std::invalid_argument);
}

TEST_CASE("MappedPagesAreToldFromMemory") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  const std::vector<char> bytes(40000, 'x');
  REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  REQUIRE(std::fflush(file) == 0);
  void* mapped = ::mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, ::fileno(file), 0);
  REQUIRE(mapped != MAP_FAILED);
  const ReadOnlyFiles files;
  REQUIRE(files.Contain(mapped, bytes.size()));
  REQUIRE(!files.Contain(mapped, std::size_t{1} << 40U));
  REQUIRE(!files.Contain(bytes.data(), bytes.size()));
  REQUIRE(!files.Contain(&mapped, sizeof(mapped)));
  ReleasePages(mapped, bytes.size());
  REQUIRE(std::memcmp(mapped, bytes.data(), bytes.size()) == 0);
  ::munmap(mapped, bytes.size());
  std::fclose(file);
}

}  // namespace powerinfer::testing
