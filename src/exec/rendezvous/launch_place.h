// Which process of a run this is, as common launchers say it, and what tells the run's processes from others.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace dsplan::exec {

struct LaunchPlace {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;    // On its node: which of the node's devices.
  std::string host;      // Of rank 0.
  int port = 29500;      // Where rank 0 listens.
  std::string launcher;  // "torchrun", "Open MPI", "Slurm", "PMI"
  // All ranks are on this machine: they listen on the loopback alone.
  bool local = true;
  // All processes of the run have the same, and no other run has it.
  std::string identity;
  std::string identity_source;  // "DSPLAN_RUN_KEY".
};

using Variables = std::function<const char*(const char*)>;
// From the environment: RANK, WORLD_SIZE, LOCAL_RANK of torchrun; OMPI_COMM_WORLD_RANK and kin of Open MPI's mpirun;
// SLURM_PROCID and kin of srun; PMI_RANK and kin of Hydra's mpiexec; in this order. MASTER_ADDR says where rank 0 is;
// without it Slurm's list of nodes does, or rank 0 must be on this node. Rank 0 listens at DSPLAN_PORT, else at
// MASTER_PORT, else at 29500; at the port after MASTER_PORT where torchrun's own store already listens there
// (TORCHELASTIC_USE_AGENT_STORE).
//
// The identity is DSPLAN_RUN_KEY, else the launcher's: TORCHELASTIC_RUN_ID (but for torchrun's "none"),
// OMPI_MCA_ess_base_jobid or PMIX_NAMESPACE, SLURM_JOB_ID with SLURM_STEP_ID, else the SLURM_JOB_ID around another
// launcher; on one machine, where none of them is there, the process that started this one, which is the launcher.
// nullopt: nobody launched this. Refuses what is half there, and a run over several machines without an
// identity.
[[nodiscard]] std::optional<LaunchPlace> launch_place(const Variables& variable);

// "identity 1a2b3c4d of DSPLAN_RUN_KEY": a digest of it, never the identity itself.
[[nodiscard]] std::string describe_identity(const LaunchPlace& place);

}  // namespace dsplan::exec
