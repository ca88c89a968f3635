// Jobs of fully_shard.
#pragma once

#include "lowered.h"

namespace lowered {

// Shards are kept in one dtype, gathered in another, and gradients are reduced in a third.
inline dsplan::Job sharded(std::int64_t ranks, dsplan::DType kept, dsplan::DType computed, dsplan::DType reduced) {
  dsplan::Job made = job(-1, ranks);
  dsplan::Training& t = made.training;
  t.runtime = dsplan::Runtime::Fsdp2;
  t.model_init = dsplan::ModelInit::Meta;
  t.master_dtype = kept;
  t.dtype = computed;
  t.communication_dtype = reduced;
  t.fsdp.casts_parameters = kept != computed;
  if (computed == dsplan::DType::Float32) t.attention = dsplan::Attention::MemoryEfficient;
  return made;
}

inline dsplan::Job sharded_mixed(std::int64_t ranks) {
  return sharded(ranks, dsplan::DType::Float32, dsplan::DType::BFloat16, dsplan::DType::Float32);
}

}  // namespace lowered
