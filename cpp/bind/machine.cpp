// Capabilities of this machine and build.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/cpu_features.h"
#include "bind/bind.h"
#include "kernels/kernel_table.h"
#include "quant/formats.h"
#include "quant/superblock.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

std::vector<std::string> FeatureNames() {
  const CpuFeatures& cpu = GetCpuFeatures();
  std::vector<std::string> names;
  const auto add = [&](bool is_usable, const char* name) {
    if (is_usable) names.emplace_back(name);
  };
  add(cpu.has_avx2, "avx2");  // detected together, see CpuFeatures
  add(cpu.has_avx2, "fma");
  add(cpu.has_avx2, "f16c");
  add(cpu.has_avx_vnni, "avx_vnni");
  add(cpu.has_avx512, "avx512");
  add(cpu.has_avx512_vnni, "avx512_vnni");
  add(cpu.has_avx512_bf16, "avx512_bf16");
  // Tiles also need the system's permission, which asking for their kernels includes.
  add(std::ranges::any_of(AvailableKernels(), [](auto* table) { return table->name == "amx"; }),
      "amx_bf16");
  add(cpu.has_neon, "neon");
  add(cpu.has_dotprod, "dotprod");
  add(cpu.has_fp16, "fp16");
  add(cpu.has_i8mm, "i8mm");
  return names;
}

/// (weights, bytes) of a block, by the name of the format.
nb::dict Formats() {
  nb::dict blocks;
  for (const FormatInfo& info : kFormatInfo) {
    blocks[nb::str(info.name.data(), info.name.size())] =
        nb::make_tuple(info.block_size, info.block_bytes);
  }
  return blocks;
}

/// Names of the formats of files that have a layout of superblocks.
std::vector<std::string> RepackedFormats() {
  std::vector<std::string> names;
  for (std::int32_t i = 0; i < kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    if (SuperblockFormat(format) != format) names.emplace_back(InfoOf(format).name);
  }
  return names;
}

std::vector<std::string> TableNames() {
  std::vector<std::string> names;
  for (const KernelTable* table : AvailableKernels()) names.emplace_back(table->name);
  return names;
}

std::string FloatProducts(const GemmKernel& gemm) {
  return (gemm.single_bytes == 2 ? "bf16 " : "f32 ") + std::string(gemm.name);
}

/// Weights are decoded if products of floats are faster than those in int8.
std::string QuantizedProducts(const KernelTable& table) {
  if (table.gemm.beats_int8) return FloatProducts(table.gemm);
  return "int8 " + std::string(table.int8.name);
}

/// The products of prompt rows: (with quantized weights, with F16 and F32, with BF16).
std::tuple<std::string, std::string, std::string> ProductNames(const std::string& kernels) {
  const KernelTable* table = FindKernels(kernels);
  if (table == nullptr) throw nb::value_error(("no kernels named " + kernels).c_str());
  return {QuantizedProducts(*table), FloatProducts(table->gemm),
          FloatProducts(table->GemmFor(Format::kBF16))};
}

}  // namespace

void BindMachine(nb::module_& module) {
  module.def("cpu_features", &FeatureNames);
  module.def("formats", &Formats);
  module.def("repacked_formats", &RepackedFormats);
  module.def("available_kernels", &TableNames);
  module.def("product_names", &ProductNames, "kernels"_a);
}

}  // namespace powerinfer
