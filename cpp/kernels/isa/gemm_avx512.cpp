// The blocked f32 product of gemm.h: AVX-512, 32 registers.
#define GEMM_LANES 16
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 12
#include "kernels/gemm_kernels.inc.h"

namespace powerinfer {

GemmKernel Avx512Gemm() { return MakeGemm("avx512", 192); }

}  // namespace powerinfer
