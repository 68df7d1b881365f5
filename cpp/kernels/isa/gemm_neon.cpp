// The blocked f32 product of gemm.h: arm64, 32 registers.
#define GEMM_LANES 4
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 12
#include "kernels/gemm_kernels.inc.h"

namespace powerinfer {

GemmKernel NeonGemm() { return MakeGemm("neon", 96); }

}  // namespace powerinfer
