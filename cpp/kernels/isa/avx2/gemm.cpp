// The blocked f32 product of gemm.h: AVX2 and FMA, 16 registers.
#define GEMM_LANES 8
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 6
#define GEMM_MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#include <immintrin.h>

#include "kernels/isa/shared/gemm_f32-inl.h"

namespace powerinfer {

GemmKernel Avx2Gemm() {
  GemmKernel kernel = MakeGemm("avx2", 96);
  kernel.listed_block = {.dot = 1.4, .add = 3.3, .turned = 1.2};
  return kernel;
}

}  // namespace powerinfer
