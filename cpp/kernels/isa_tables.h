// The tables that dispatch.cpp chooses from. kernels/isa/<name>/table.cpp of each instruction set
// defines one; sets without such a file define one kernel, which dispatch.cpp puts into a copy of
// another.
//
// Those files are compiled with flags of their own CPU, so nothing in them may leave an inline
// function or template shared with other files (the linker keeps one copy, perhaps the AVX-512
// one): keep everything in the set's own namespace or static, and use no std:: containers there.
#pragma once

#include "kernels/kernel_table.h"

namespace powerinfer {

const KernelTable& PortableKernelTable();
const KernelTable& Avx2KernelTable();    ///< x86-64 with AVX2, FMA, F16C, BMI2
const KernelTable& Avx512KernelTable();  ///< AVX-512 F, BW, VL, DQ and VNNI as well
const KernelTable& NeonKernelTable();    ///< arm64 with dotprod and fp16
Int8Kernel AvxVnniInt8Kernel();          ///< AVX2's vectors with AVX-VNNI
Int8Kernel NeonI8mmInt8Kernel();         ///< NEON's with i8mm

}  // namespace powerinfer
