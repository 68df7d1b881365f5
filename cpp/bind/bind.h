// Functions that each add the bindings of one topic to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace powerinfer {

void BindMachine(nanobind::module_& module);       ///< CPU features, kernel tables
void BindHandles(nanobind::module_& module);       ///< handles: teams, matrices, caches
void BindRows(nanobind::module_& module);          ///< embed, norms, sums
void BindLinear(nanobind::module_& module);        ///< products
void BindRecode(nanobind::module_& module);        ///< copies of matrices in other formats
void BindLogits(nanobind::module_& module);        ///< what sampling asks of all logits
void BindScreenedHead(nanobind::module_& module);  ///< the head for a choice among few
void BindAttention(nanobind::module_& module);     ///< rotation, cache writes, attention
void BindState(nanobind::module_& module);         ///< states of sequences, and their mixers
void BindLazyExperts(nanobind::module_& module);   ///< matrices of experts
void BindFFN(nanobind::module_& module);           ///< feed-forward blocks
void BindFiring(nanobind::module_& module);        ///< blocks that report firing neurons
void BindPredictor(nanobind::module_& module);     ///< neuron predictors
void BindExchange(nanobind::module_& module);      ///< the CPU half of hybrid blocks
void BindStepRecord(nanobind::module_& module);    ///< steps that run again without Python
void BindBandwidth(nanobind::module_& module);     ///< plain reads, and how kernels read

}  // namespace powerinfer
