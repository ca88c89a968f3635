// How processes of one run find each other before they have a communicator: which of them this is, as common launchers
// say it, and a few bytes that rank 0 hands to all others over TCP. Neither needs a device.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dsplan::exec {

struct LaunchPlace {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;    // On its node: which of the node's devices.
  std::string host;      // Of rank 0.
  int port = 29500;      // Where rank 0 listens; torchrun's default.
  std::string launcher;  // "torchrun", "Open MPI", "Slurm", "PMI"
};

using Variables = std::function<const char*(const char*)>;
// From the environment: RANK, WORLD_SIZE, LOCAL_RANK of torchrun; OMPI_COMM_WORLD_RANK and kin of Open MPI's mpirun;
// SLURM_PROCID and kin of srun; PMI_RANK and kin of Hydra's mpiexec; in this order. MASTER_ADDR and MASTER_PORT say
// where rank 0 is; without them it must be on this node. nullopt: nobody launched this. Refuses what is half there.
[[nodiscard]] std::optional<LaunchPlace> launch_place(const Variables& variable);

// Collective: every rank calls it; rank 0's bytes are what all return. Others try to reach rank 0, again and again,
// until `patience` is over; rank 0 waits as long for all of them. Throws RunFailure: DSPLAN_TIMEOUT with who did not
// come, DSPLAN_INVALID where two ranks do not agree on the number of ranks, or one comes twice.
[[nodiscard]] std::vector<std::byte> share(const LaunchPlace& place, const std::vector<std::byte>& own,
                                           std::chrono::milliseconds patience);

}  // namespace dsplan::exec
