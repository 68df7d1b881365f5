// The blocked f32 product of gemm.h: any CPU with 16 registers of four floats.
#define GEMM_LANES 4
#define GEMM_VECTORS 2
#define GEMM_TILE_ROWS 4
#include "kernels/gemm_kernels.inc.h"

namespace powerinfer {

GemmKernel PortableGemm() { return MakeGemm("portable", 64); }

}  // namespace powerinfer
