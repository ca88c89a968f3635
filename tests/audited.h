// All data-parallel ranks of a job, held against the auditor and against the formulas of what stays.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/audit.h"
#include "lowered.h"
#include "planner/predict/footprint.h"
#include "sim/memory.h"

namespace audited {

using dsplan::Role;

// The batch and the workspaces are no runtime's.
inline const std::vector<Role> kStates = {Role::Parameters, Role::Gradients, Role::Optimizer, Role::RuntimeBuffers};
inline const std::vector<Role> kOfRuntimes = {Role::Parameters, Role::Gradients, Role::Optimizer, Role::RuntimeBuffers,
                                              Role::Temporaries};

inline std::vector<dsplan::Schedule> ranks(const dsplan::ModelSpec& model, const dsplan::Job& job,
                                           const std::vector<Role>& roles = kOfRuntimes) {
  using namespace dsplan;
  std::vector<Schedule> schedules = lowered::all_ranks(model, job);
  for (const Schedule& schedule : schedules) {
    const Footprint formulas = footprint(model, job, schedule.rank);
    const std::vector<Finding> findings = audit(schedule);
    CHECK_MESSAGE(findings.empty(), (findings.empty() ? std::string() : findings.front().text));
    MemoryMeter meter(schedule);
    replay(schedule, meter);
    for (const Role role : roles) {
      CHECK(meter.by_role()[role] == formulas.persistent[role]);
    }
  }
  CHECK(audit_ranks(schedules).empty());
  return schedules;
}

}  // namespace audited
