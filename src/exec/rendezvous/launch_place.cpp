#include "exec/rendezvous/launch_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/format.h"
#include "core/sha256.h"

namespace dsplan::exec {
namespace {

// What the launchers call rank, number of ranks, rank on the node and number on the node, and the run itself.
struct LaunchProgram {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;                // nullptr: it does not say.
  std::array<const char*, 2> identities;  // Likewise; the first that is set counts.
};
constexpr std::array kLaunchers = {
    LaunchProgram{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID", nullptr}},
    LaunchProgram{"Open MPI",
                  "OMPI_COMM_WORLD_RANK",
                  "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK",
                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                  {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    LaunchProgram{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, {"SLURM_JOB_ID", nullptr}},
    LaunchProgram{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {nullptr, nullptr}},
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
bool on_one_node(const Variables& variable, const LaunchProgram& launcher, int ranks) {
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

bool is_loopback(std::string_view host) { return host == "localhost" || host == "::1" || host.substr(0, 4) == "127."; }

// Where rank 0 is, and whether all ranks are there. Where the launcher says that they are, a name that leads outside
// is not asked for: rank 0 then listens on the loopback alone.
void find_rank_0(const Variables& variable, const LaunchProgram& launcher, LaunchPlace& place) {
  const char* host = variable("MASTER_ADDR");
  if (place.ranks == 1 || on_one_node(variable, launcher, place.ranks) || (host != nullptr && is_loopback(host))) {
    place.host = "localhost";
    return;
  }
  place.local = false;
  if (host != nullptr) place.host = host;
  if (host == nullptr && std::string_view(launcher.name) == "Slurm") {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
      const char* list = variable(name);
      if (list != nullptr && place.host.empty()) place.host = first_node(list);
    }
  }
  if (!place.host.empty()) return;
  throw Refusal("MASTER_ADDR",
                formatted("is not set, and {} does not say that all ranks are on one node", launcher.name),
                "the host name of rank 0");
}

// What is set to something that tells runs apart; nullptr: nothing is. torchrun calls every run "none" to which nobody
// gives a name.
const char* identity_in(const Variables& variable, const char* name) {
  const char* text = name == nullptr ? nullptr : variable(name);
  if (text == nullptr || *text == 0) return nullptr;
  const bool unnamed = std::string_view(name) == "TORCHELASTIC_RUN_ID" && std::string_view(text) == "none";
  return unnamed ? nullptr : text;
}

// The process that started this one, and when that began: no other process of the machine has both.
std::string parent_process() {
  const pid_t parent = ::getppid();
  std::ifstream file(formatted("/proc/{}/stat", static_cast<std::int64_t>(parent)));
  std::string stat;
  std::getline(file, stat);
  // Fields are counted behind the program's name, which may hold blanks: the start is the twentieth (man 5 proc).
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string start;
  for (int field = 0; field < 20; ++field) fields >> start;
  return formatted("{} since {}", static_cast<std::int64_t>(parent), start);
}

void find_identity(const Variables& variable, const LaunchProgram& launcher, LaunchPlace& place) {
  for (const char* name : {"DSPLAN_RUN_KEY", launcher.identities[0], launcher.identities[1], "SLURM_JOB_ID"}) {
    const char* text = identity_in(variable, name);
    if (text == nullptr || !place.identity.empty()) continue;
    place.identity = text;
    place.identity_source = name;
  }
  // srun starts several runs in one job: its steps.
  const char* step = variable("SLURM_STEP_ID");
  if (std::string_view(launcher.name) == "Slurm" && place.identity_source == "SLURM_JOB_ID" && step != nullptr) {
    place.identity = place.identity + "." + step;
    place.identity_source += " and SLURM_STEP_ID";
  }
  if (place.local && place.identity.empty()) {
    place.identity = parent_process();
    place.identity_source = "the launcher's process";
  }
  if (place.identity.empty()) {
    throw Refusal("DSPLAN_RUN_KEY",
                  formatted("is not set, and {} gives the run no identity: its processes, on several machines, could "
                            "not tell each other from strangers",
                            launcher.name),
                  std::string_view(launcher.name) == "torchrun" ? "the same random text for all ranks, or --rdzv-id"
                                                                : "the same random text for all ranks");
  }
}

int rendezvous_port(const Variables& variable, int usual) {
  constexpr int kLast = 65535;
  if (variable("DSPLAN_PORT") != nullptr) return number(variable, "DSPLAN_PORT", 1, kLast);
  if (variable("MASTER_PORT") == nullptr) return usual;
  const char* store = variable("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = store != nullptr && std::string_view(store) == "True";
  return number(variable, "MASTER_PORT", 1, taken ? kLast - 1 : kLast) + (taken ? 1 : 0);
}

}  // namespace

std::optional<LaunchPlace> launch_place(const Variables& variable) {
  for (const LaunchProgram& launcher : kLaunchers) {
    if (variable(launcher.rank) == nullptr) continue;
    LaunchPlace place;
    place.launcher = launcher.name;
    place.rank = number(variable, launcher.rank, 0);
    place.ranks = number(variable, launcher.ranks, 1);
    place.local_rank = number(variable, launcher.local_rank, 0);
    if (place.rank >= place.ranks) {
      throw Refusal(launcher.rank, formatted("rank {} of {} ranks", place.rank, place.ranks));
    }
    find_rank_0(variable, launcher, place);
    find_identity(variable, launcher, place);
    place.port = rendezvous_port(variable, place.port);
    return place;
  }
  return std::nullopt;
}

std::string describe_identity(const LaunchPlace& place) {
  if (place.identity.empty()) return "no identity";
  return formatted("identity {} of {}", sha256("dsplan run, shown\n" + place.identity).substr(0, 8),
                   place.identity_source);
}

}  // namespace dsplan::exec
