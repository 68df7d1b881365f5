// The blocked f32 product of gemm.h: arm64, 32 registers.
#define GEMM_LANES 4
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 12
#define GEMM_MULTIPLY_ADD(a, b, c) vfmaq_f32(c, a, b)
#include <arm_neon.h>

#include "kernels/isa/shared/gemm_f32-inl.h"

namespace powerinfer {

GemmKernel NeonGemm() { return MakeGemm("neon", 96); }

}  // namespace powerinfer
