// The rules of advice by formula that stand in files of their own.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"

namespace dsplan {

// advice_offload.cpp: swap_buffer_size, swap_buffers_unused, spare_swap_buffers, max_in_cpu_idle, ratio_rounds.
void advise_offload(const ModelSpec& model, const Job& job, std::vector<Advice>& into);

// advice_tensor.cpp: partition_alone, replicated_key_values, padded_vocabulary.
void advise_tensor_parallel(const ModelSpec& model, const Job& job, std::vector<Advice>& into);

}  // namespace dsplan
