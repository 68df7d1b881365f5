// The blocked f32 product of gemm.h: any CPU with 16 registers of four floats.
#define GEMM_LANES 4
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 4
#define GEMM_MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#include "kernels/isa/shared/gemm_f32-inl.h"

namespace powerinfer {

GemmKernel PortableGemm() { return MakeGemm("portable", 64); }

}  // namespace powerinfer
