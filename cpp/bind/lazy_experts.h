// Lazy matrices of a block or a predictor, filled when their experts are chosen.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bind/handles.h"
#include "sparse/expert_filler.h"

namespace powerinfer {

class LazyExperts final : public ExpertFiller {
 public:
  /// A Matrix or None.
  void Add(const nanobind::object& matrix);

  bool IsEmpty() const { return matrices_.empty(); }
  /// This, or null if there is nothing to fill.
  const ExpertFiller* Filler() const { return IsEmpty() ? nullptr : this; }
  /// Raises ShapeError unless all matrices have the experts of the block, which has a router if
  /// there are any.
  void CheckExperts(const std::string& what, const FFNView& ffn) const;

  void Fill(const OpContext& context, std::span<const std::int32_t> experts) const override;
  void FillAll(TeamHandle& team) const;

 private:
  std::vector<std::shared_ptr<LazyMatrix>> matrices_;
};

}  // namespace powerinfer
