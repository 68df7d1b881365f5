// Finds the kernel tables that this CPU runs, once; POWERINFER_HAVE_* come from CMakeLists.txt.
#include "base/cpu_features.h"
#include "kernels/isa_tables.h"
#include "kernels/kernel_table.h"

namespace powerinfer {
namespace {

#if defined(POWERINFER_HAVE_AVX512) && defined(POWERINFER_HAVE_AMX)
/// AVX-512 for everything but products with many tokens.
const KernelTable& AmxKernelTable() {
  static const KernelTable table = [] {
    KernelTable copy = Avx512KernelTable();
    copy.name = "amx";
    copy.gemm = AmxGemm();
    return copy;
  }();
  return table;
}
#endif

#if defined(POWERINFER_HAVE_AVX2) && defined(POWERINFER_HAVE_AVXVNNI)
/// AVX2 for everything but prompt rows of block formats.
const KernelTable& AvxVnniKernelTable() {
  static const KernelTable table = [] {
    KernelTable copy = Avx2KernelTable();
    copy.name = "avxvnni";
    copy.int8 = AvxVnniInt8Kernel();
    return copy;
  }();
  return table;
}
#endif

#if defined(POWERINFER_HAVE_AVX512)
/// AVX-512, with the product for BF16 weights that this CPU may have.
const KernelTable& Avx512TableOfThisCpu() {
  static const KernelTable table = [] {
    KernelTable copy = Avx512KernelTable();
#if defined(POWERINFER_HAVE_AVX512BF16)
    if (GetCpuFeatures().has_avx512_bf16) copy.bf16 = Avx512Bf16Gemm();
#endif
    return copy;
  }();
  return table;
}
#endif

#if defined(POWERINFER_HAVE_NEON) && defined(POWERINFER_HAVE_NEONI8MM)
/// NEON for everything but prompt rows of block formats.
const KernelTable& NeonI8mmKernelTable() {
  static const KernelTable table = [] {
    KernelTable copy = NeonKernelTable();
    copy.name = "neoni8mm";
    copy.int8 = NeonI8mmInt8Kernel();
    return copy;
  }();
  return table;
}
#endif

std::vector<const KernelTable*> FindTables() {
  [[maybe_unused]] const CpuFeatures& cpu = GetCpuFeatures();
  std::vector<const KernelTable*> tables;
#if defined(POWERINFER_HAVE_AVX512) && defined(POWERINFER_HAVE_AMX)
  if (cpu.has_avx512 && cpu.has_avx512_vnni && IsAmxUsable()) tables.push_back(&AmxKernelTable());
#endif
#if defined(POWERINFER_HAVE_AVX512)
  if (cpu.has_avx512 && cpu.has_avx512_vnni) tables.push_back(&Avx512TableOfThisCpu());
#endif
#if defined(POWERINFER_HAVE_AVX2) && defined(POWERINFER_HAVE_AVXVNNI)
  if (cpu.has_avx_vnni) tables.push_back(&AvxVnniKernelTable());
#endif
#if defined(POWERINFER_HAVE_AVX2)
  if (cpu.has_avx2) tables.push_back(&Avx2KernelTable());
#endif
#if defined(POWERINFER_HAVE_NEON)
  const bool has_neon_table = cpu.has_neon && cpu.has_dotprod && cpu.has_fp16;
#if defined(POWERINFER_HAVE_NEONI8MM)
  if (has_neon_table && cpu.has_i8mm) tables.push_back(&NeonI8mmKernelTable());
#endif
  if (has_neon_table) tables.push_back(&NeonKernelTable());
#endif
  tables.push_back(&PortableKernelTable());
  return tables;
}

}  // namespace

const std::vector<const KernelTable*>& AvailableKernels() {
  static const std::vector<const KernelTable*> tables = FindTables();
  return tables;
}

const KernelTable* FindKernels(std::string_view name) {
  for (const KernelTable* table : AvailableKernels()) {
    if (table->name == name) return table;
  }
  return nullptr;
}

}  // namespace powerinfer
