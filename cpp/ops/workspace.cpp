#include "ops/workspace.h"

#include <new>

namespace powerinfer {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kGranularity = 4096;

}  // namespace

Workspace::~Workspace() {
  for (const Buffer& buffer : buffers_) ::operator delete(buffer.data, kAlignment);
}

std::size_t Workspace::Capacity() const {
  std::size_t total = nested_ != nullptr ? nested_->Capacity() : 0;
  for (const Buffer& buffer : buffers_) total += buffer.size;
  return total;
}

Workspace& Workspace::Nested() {
  if (nested_ == nullptr) nested_ = std::make_unique<Workspace>();
  return *nested_;
}

void* Workspace::Bytes(Scratch slot, std::size_t size) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(slot)];
  if (size > buffer.size || buffer.data == nullptr) {
    const std::size_t rounded = (size / kGranularity + 1) * kGranularity;
    ::operator delete(buffer.data, kAlignment);
    buffer = {};
    buffer.data = ::operator new(rounded, kAlignment);
    buffer.size = rounded;
  }
  return buffer.data;
}

}  // namespace powerinfer
