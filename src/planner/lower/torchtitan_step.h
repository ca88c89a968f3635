// What torchtitan's Trainer does around the model (torchtitan 0.2.2, train.py): init_weights, and what the variables of
// train_step hold.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "planner/lower/eager.h"

namespace dsplan {

// init_weights, behind to_empty: the tables of `buffers` (by index into ModelSpec::buffers) give way to new ones, with
// all that computes them (models/llama3/model/model.py, precompute_freqs_cis; models/qwen3/model/model.py,
// precompute_rope_cache); then weights are drawn, those of linear layers in fp32 since 0.2.2 (models/utils.py,
// trunc_normal_).
void init_weights(const ModelSpec& model, const Job& job, std::int64_t rank, Emitter& emitter,
                  std::vector<BufferId>& buffers);

class TorchtitanStep {
 public:
  TorchtitanStep(Emitter& emitter, const Job& job) : eager_(emitter), job_(job) {}

  // The step's tokens that count are counted on the host, and summed over the ranks.
  void begin();
  // The next micro-batch is about to be made: the list of micro-batches holds what this one has moved to the device,
  // and that is ids, not labels.
  void keep_ids(std::vector<BufferId> batch);
  // The loss, and the sum that it was divided from, which a variable holds until backward returns.
  void forward_returns(Variables outputs);
  void backward_returns();
  // `first`: then set_pg_timeouts, whose barrier leaves a byte.
  void end(bool first);

 private:
  Eager eager_;
  const Job& job_;
  Variable tokens_;
  Variables ids_;
  Variables losses_;
  Variable loss_;
  Variable sum_;
  Variable barrier_;
};

}  // namespace dsplan
