// Small configurations of each family that runs, drawn at random: at every node what exec's operators make is what the
// catalogue says, in forward and in backward.
#include <filesystem>
#include <fstream>
#include <random>

#include "exec_walk.h"
#include "model/graphs/graphs.h"
#include "model/traits.h"
#include "paths.h"
#include "running.h"

using namespace dsplan;

namespace {

std::optional<std::string> small_config(const std::filesystem::path& path) {
  constexpr std::string_view kMark = "# config ";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && line.starts_with('#');) {
    if (line.starts_with(kMark)) return line.substr(kMark.size());
  }
  return std::nullopt;
}

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : source_(seed) {}
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(source_() % static_cast<std::uint32_t>(most - least + 1));
  }
  bool coin() { return between(0, 1) == 1; }

 private:
  std::mt19937 source_;
};

// Of every key that is there and may be any number, another one.
std::string drawn(std::string config, Draw& draw) {
  const auto set = [&](const std::string& key, std::int64_t value) {
    const std::string mark = "\"" + key + "\": ";
    const std::size_t at = config.find(mark);
    if (at == std::string::npos) return;
    const std::size_t begin = at + mark.size();
    config.replace(begin, config.find_first_not_of("0123456789", begin) - begin, std::to_string(value));
  };
  for (const char* key : {"intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "moe_intermediate_size"}) {
    set(key, 4 * draw.between(1, 6));
  }
  set("vocab_size", draw.between(17, 40));
  set("shared_expert_intermediate_size", 4 * draw.between(1, 4));
  return config;
}

GraphOptions options_for(const ModelSpec& model, Draw& draw) {
  GraphOptions options;
  options.micro_batch = draw.between(1, 3);
  options.seq = model.dims.image > 0 ? model.dims.max_positions : draw.between(2, 12);
  options.target_seq = draw.between(2, 12);
  constexpr DType kDTypes[] = {DType::Float32, DType::BFloat16, DType::Float16};
  options.dtype = kDTypes[draw.between(0, 2)];
  const bool composed = eager_alone(model) || biases_positions(model);
  options.eager_attention = !always_masked(model) && (composed || draw.coin());
  options.math_attention = shares_one_head(model);
  options.attention = own_value_width(model) ? AttentionKernel::MemoryEfficient : AttentionKernel::Flash;
  options.inputs_require_grad = draw.coin();
  return options;
}

}  // namespace

TEST_CASE("each family's operators make what the catalogue says, at shapes that are drawn") {
  Draw draw(7);
  std::size_t compared = 0;
  std::size_t families = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_paths::source_dir() + "/tests/witnesses/exec")) {
    const std::optional<std::string> config = small_config(entry.path());
    if (!config) continue;
    ++families;
    for (int trial = 0; trial < 6; ++trial) {
      const std::string own = drawn(*config, draw);
      CAPTURE(own);
      const ModelSpec model = running::model(own.c_str());
      const GraphOptions options = options_for(model, draw);
      INFO(options.micro_batch << " rows of " << options.seq << ", " << name(options.dtype)
                               << (options.eager_attention ? ", eager" : ", fused"));
      const Graph graph = build_graph(model, options);
      walking::Walk walk(graph);
      walk.forward();
      walk.backward();
      compared += walk.compared();
      for (const std::string& fault : walk.faults()) FAIL_CHECK(fault);
    }
  }
  MESSAGE(families << " configurations, " << compared << " slots equal");
  CHECK(families >= 57);
  CHECK(compared > 50'000);
}
