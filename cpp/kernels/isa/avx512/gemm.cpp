// The blocked f32 product of gemm.h: AVX-512, 32 registers.
#define GEMM_LANES 16
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 12
#define GEMM_MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#include <immintrin.h>

#include "kernels/isa/shared/gemm_f32-inl.h"

namespace powerinfer {

GemmKernel Avx512Gemm() {
  GemmKernel kernel = MakeGemm("avx512", 192);
  kernel.listed_float = {.dot = 3.0, .add = 2.8, .turned = 1.15};
  kernel.listed_block = {.dot = 2.5, .add = 5.9, .turned = 2.2};
  return kernel;
}

}  // namespace powerinfer
