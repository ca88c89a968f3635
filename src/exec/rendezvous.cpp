#include "exec/rendezvous.h"

#include <array>
#include <charconv>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {
namespace {

// What the launchers call rank, number of ranks, rank on the node and number on the node.
struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;  // nullptr: it does not say.
};
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
    Launcher{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

int number(const Variables& variable, const char* name, int least, int most = 1 << 20) {
  const char* text = variable(name);
  if (text == nullptr) throw Refusal(name, "is not set, though the launcher's other variables are");
  int value = 0;
  const std::string_view all(text);
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc() || end != all.data() + all.size() || value < least || value > most) {
    throw Refusal(name, formatted("\"{}\" is no number from {} to {}", text, least, most));
  }
  return value;
}

// Whether all ranks are on this node, as far as the launcher says.
bool on_one_node(const Variables& variable, const Launcher& launcher, int ranks) {
  if (launcher.local_ranks != nullptr && variable(launcher.local_ranks) != nullptr) {
    return number(variable, launcher.local_ranks, 1) == ranks;
  }
  const char* nodes = variable("SLURM_NNODES");
  return nodes != nullptr && std::string_view(nodes) == "1";
}

// "node[03-05,07],login" -> "node03": the first name of a list as Slurm writes it.
std::string first_node(std::string_view list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (comma < bracket || bracket == std::string_view::npos) return std::string(list.substr(0, comma));
  const std::size_t end = list.find_first_of(",-]", bracket);
  if (end == std::string_view::npos) return {};
  return std::string(list.substr(0, bracket)) + std::string(list.substr(bracket + 1, end - bracket - 1));
}

// nullopt: nobody says it.
std::optional<std::string> host_of_rank_0(const Variables& variable, const Launcher& launcher, int ranks) {
  if (const char* host = variable("MASTER_ADDR"); host != nullptr) return host;
  if (ranks == 1 || on_one_node(variable, launcher, ranks)) return "localhost";
  if (std::string_view(launcher.name) != "Slurm") return std::nullopt;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    const char* list = variable(name);
    if (list == nullptr) continue;
    if (std::string first = first_node(list); !first.empty()) return first;
  }
  return std::nullopt;
}

int port_of(const Variables& variable, int usual) {
  constexpr int kLast = 65535;
  if (variable("DSPLAN_PORT") != nullptr) return number(variable, "DSPLAN_PORT", 1, kLast);
  if (variable("MASTER_PORT") == nullptr) return usual;
  const char* store = variable("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = store != nullptr && std::string_view(store) == "True";
  return number(variable, "MASTER_PORT", 1, taken ? kLast - 1 : kLast) + (taken ? 1 : 0);
}

}  // namespace

std::optional<LaunchPlace> launch_place(const Variables& variable) {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank) == nullptr) continue;
    LaunchPlace place;
    place.launcher = launcher.name;
    place.rank = number(variable, launcher.rank, 0);
    place.ranks = number(variable, launcher.ranks, 1);
    place.local_rank = number(variable, launcher.local_rank, 0);
    if (place.rank >= place.ranks) {
      throw Refusal(launcher.rank, formatted("rank {} of {} ranks", place.rank, place.ranks));
    }
    const std::optional<std::string> host = host_of_rank_0(variable, launcher, place.ranks);
    if (!host) {
      throw Refusal("MASTER_ADDR",
                    formatted("is not set, and {} does not say that all ranks are on one node", launcher.name),
                    "the host name of rank 0");
    }
    place.host = *host;
    place.port = port_of(variable, place.port);
    return place;
  }
  return std::nullopt;
}

}  // namespace dsplan::exec
