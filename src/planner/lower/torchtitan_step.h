// What torchtitan's Trainer does around the model (torchtitan 0.2.2, train.py): rotary tables that init_weights makes
// once more, and what the variables of train_step hold.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "planner/lower/eager.h"

namespace dsplan {

// init_weights, behind to_empty: the tables of `buffers` (by index into ModelSpec::buffers) give way to new ones, with
// all that computes them (models/llama3/model/model.py, precompute_freqs_cis; models/qwen3/model/model.py,
// precompute_rope_cache).
void make_tables_anew(const ModelSpec& model, const Job& job, Emitter& emitter, std::vector<BufferId>& buffers);

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
