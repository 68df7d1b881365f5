// Weights of experts that are loaded once the experts are chosen.
#pragma once

#include <cstdint>
#include <span>

#include "ops/op_context.h"

namespace powerinfer {

/// Loads the weights of experts when they are first chosen.
class ExpertFiller {
 public:
  ExpertFiller() = default;
  ExpertFiller(const ExpertFiller&) = delete;
  ExpertFiller& operator=(const ExpertFiller&) = delete;
  virtual ~ExpertFiller() = default;

  /// May be called for several teams at once.
  virtual void Fill(const OpContext& context, std::span<const std::int32_t> experts) const = 0;
};

}  // namespace powerinfer
