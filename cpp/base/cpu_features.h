// Capabilities of the processor and the operating system.
#pragma once

namespace powerinfer {

/// Instruction-set extensions that kernels depend on. False if the operating system does not save
/// the registers (XGETBV) or the architecture lacks them.
struct CpuFeatures {
  bool has_avx2 = false;    ///< with FMA, F16C and BMI2
  bool has_avx512 = false;  ///< F, BW, VL, DQ
  bool has_avx512_vnni = false;
  bool has_avx512_bf16 = false;
  bool has_avx_vnni = false;
  bool has_neon = false;
  bool has_dotprod = false;  ///< arm64 dot product of int8
  bool has_fp16 = false;     ///< arm64 half-precision arithmetic
  bool has_i8mm = false;     ///< arm64 products of int8 matrices
};

/// Detected once, on first use.
const CpuFeatures& GetCpuFeatures();

}  // namespace powerinfer
