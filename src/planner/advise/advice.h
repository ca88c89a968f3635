// Settings that do nothing, or that cost memory for nothing, with the bytes that they cost (deepspeed-zero.md, sections
// 12, 13 and 16). No figure is guessed: it is the size of a buffer, by the formula that the framework sizes it with, or
// the difference between two predictions.
//
// By formula, in every prediction: bucket_larger_than_model, overlap_second_bucket, stage2_accumulation; on
// the host swap_buffer_size, swap_buffers_unused, spare_swap_buffers, max_in_cpu_idle, ratio_rounds; of tensor-parallel
// ranks partition_alone, replicated_key_values, padded_vocabulary; and what resolve noticed (auto_fallback, wrong_unit,
// no_cap, inert_key). By prediction, with `--explain advice` only, as each takes as long as the prediction itself:
// smaller_stage, reduce_scatter_copy, sub_group_cast, checkpointing_without_code.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"

namespace dsplan {

// The rules that formulas answer, for `rank`; the dearest first, those that cost nothing last.
[[nodiscard]] std::vector<Advice> advice_by_formula(const ModelSpec& model, const Job& job, std::int64_t rank,
                                                    Elements trainable);

// Adds the others to each of `predictions`, which are those of `job`. Costs are of the process's peak.
void add_predicted_advice(const ModelSpec& model, const Job& job, std::vector<Prediction>& predictions);

}  // namespace dsplan
