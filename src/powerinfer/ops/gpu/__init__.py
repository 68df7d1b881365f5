"""Operations on one torch device, with Triton kernels; knows no plan and no CPU half."""
