#include "bind/lazy_experts.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "bind/bind.h"
#include "quant/superblock.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// [num_experts * rows_per_expert, columns] from one matrix, or from one for each expert. Lazy,
/// unless it exists already: as one matrix that keeps its format.
nb::object ExpertMatrix(const nb::list& pieces, std::int64_t rows_per_expert, Arena& arena,
                        bool is_repacked) {
  std::vector<MatrixView> views;
  for (const nb::handle piece : pieces) {
    const auto& handle = nb::cast<const MatrixHandle&>(piece);
    if (handle.lazy != nullptr) throw nb::value_error("a piece cannot be a matrix of experts");
    views.push_back(handle.view);
  }
  if (views.size() == 1 && !is_repacked && rows_per_expert > 0 &&
      views[0].rows % rows_per_expert == 0) {
    return nb::borrow(pieces[0]);
  }
  try {
    auto lazy = std::make_shared<LazyMatrix>(views, rows_per_expert, arena, is_repacked);
    return nb::cast(MatrixHandle(std::move(lazy), pieces));
  } catch (const std::invalid_argument& error) {
    RaiseShapeError(error.what());
  }
}

}  // namespace

void LazyExperts::Add(const nb::object& matrix) {
  if (matrix.is_none()) return;
  const auto& handle = nb::cast<const MatrixHandle&>(matrix);
  if (handle.lazy != nullptr) matrices_.push_back(handle.lazy);
}

void LazyExperts::CheckExperts(const std::string& what, const FFNView& ffn) const {
  if (!IsEmpty() && !ffn.HasExperts()) {
    throw nb::value_error((what + " has a matrix of experts, but there is no router").c_str());
  }
  for (const auto& matrix : matrices_) {
    if (matrix->NumExperts() == ffn.NumExperts()) continue;
    RaiseShapeError(what + " has a matrix of " + std::to_string(matrix->NumExperts()) +
                    " experts, the router has " + std::to_string(ffn.NumExperts()));
  }
}

void LazyExperts::Fill(const OpContext& context, std::span<const std::int32_t> experts) const {
  for (const std::int32_t expert : experts) {
    for (const auto& matrix : matrices_) matrix->Fill(context, expert);
  }
}

void LazyExperts::FillAll(TeamHandle& team) const {
  const auto is_full = [](const auto& matrix) { return matrix->IsFull(); };
  if (std::ranges::all_of(matrices_, is_full)) return;
  const ReleasedGil released;
  team.shared.Run([&](const OpContext& context) {
    for (const auto& matrix : matrices_) matrix->FillAll(context);
  });
}

void BindLazyExperts(nb::module_& module) {
  module.def("expert_matrix", &ExpertMatrix, "pieces"_a, "rows_per_expert"_a, "arena"_a,
             "repack"_a);
}

}  // namespace powerinfer
