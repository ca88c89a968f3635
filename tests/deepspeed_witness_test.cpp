// Our schedules against what real DeepSpeed did on its CPU accelerator, rank by rank and event for event: collectives
// in order, storages that the runtime makes and when it lets go of them, frees of parameters and gradients.
#include "deepspeed_log.h"

#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/lower/runtime.h"
#include "planner/lower/unsupported.h"

using namespace deepspeed_log;

namespace {

// Cases that are not compared, and why.
const std::map<std::string, std::string> kNotCompared = {
    {"z2-llama-torch-adam", "torch's own Adam is compared without ZeRO (optimizers.json)"},
};

std::vector<std::string> cases(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".json" && name.starts_with(prefix) && !kNotCompared.contains(name)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void compare(const std::string& name) {
  const Run witness = read_run(name);
  const ModelSpec model = model_of_witness(witness);
  Job job = job_of_witness(witness, model);
  job.training.zero.offload_optimizer.pin_memory = false;  // A CPU accelerator gives back the tensor itself.
  // What torch takes on a CPU.
  Optimizer& optimizer = job.training.optimizer;
  if (optimizer.implementation == Implementation::Foreach) optimizer.implementation = Implementation::ForLoop;
  const auto why = unsupported(model, job);
  CHECK_MESSAGE(!why, name, ": ", why.value_or(""));
  if (why) return;
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, {job.training.torch});
  for (std::size_t rank = 0; rank < witness.ranks.size(); ++rank) {
    const Schedule schedule = lower(model, job, graph, recipes, static_cast<std::int64_t>(rank));
    const std::vector<int> numbers = numbers_of(witness, model);
    const std::string difference = first_difference(moves_of(witness.ranks[rank], 2), Ours(schedule, numbers).take());
    CHECK_MESSAGE(difference.empty(), name, " rank ", rank, ": ", difference);
    if (!difference.empty()) break;
  }
}

}  // namespace

TEST_CASE("schedules without ZeRO equal real DeepSpeed") {
  for (const std::string& name : cases("z0-")) {
    if (name.find("tiny") == std::string::npos) compare(name);
  }
}

TEST_CASE("schedules of ZeRO-1 equal real DeepSpeed") {
  for (const std::string& name : cases("z1-")) {
    if (name.find("tiny") == std::string::npos) compare(name);
  }
}

TEST_CASE("schedules of ZeRO-2 equal real DeepSpeed") {
  for (const std::string& name : cases("z2-")) {
    if (name.find("tiny") == std::string::npos) compare(name);
  }
}

namespace {

// One group with a = 10, b = 7, c = 5 elements in one module (deepspeed_models.py, Tiny).
ModelSpec tiny_model() {
  ModelSpec model;
  model.name = "tiny";
  model.family = "tiny";
  model.dims.layers = 1;
  model.dims.max_positions = 8;
  model.modules = {{"", "Tiny", kNone, kNone}};
  model.parameters = {{"a", Shape({10}), 0, kNone, true, Split::Replicated, 0, {}},
                      {"b", Shape({7}), 0, kNone, true, Split::Replicated, 0, {}},
                      {"c", Shape({5}), 0, kNone, true, Split::Replicated, 0, {}}};
  return model;
}

// The runtime alone, with gradients in the order c, b, a.
Schedule drive(const Job& job, const ModelSpec& model, std::int64_t rank) {
  Emitter emitter(1024);
  const std::unique_ptr<TrainingRuntime> runtime = make_runtime(job, model, rank, emitter);
  emitter.at(Pass::Setup);
  emitter.mark(Moment::StretchBegins, Stretch::Init);
  runtime->initialise({});
  emitter.mark(Moment::StretchEnds, Stretch::Init);
  for (const Stretch stretch : {Stretch::FirstStep, Stretch::SecondStep}) {
    emitter.mark(Moment::StretchBegins, stretch);
    for (std::int32_t k = 0; k < job.training.grad_accum; ++k) {
      const bool boundary = k + 1 == job.training.grad_accum;
      emitter.mark(Moment::ForwardBegins, stretch, k);
      emitter.at(Pass::Backward);
      runtime->backward_begins(boundary);
      emitter.mark(Moment::BackwardBegins, stretch, k);
      for (const ParameterId id : {2, 1, 0}) {
        const Elements elements = model.parameter_at(id).shape.elements();
        const DType dtype = job.training.dtype;
        const BufferId gradient = emitter.allocate(storage(elements, dtype), dtype, {Role::Gradients, "gradient"}, id);
        emitter.begin();
        emitter.write(gradient);
        emitter.compute(Body::Nothing, "backward");
        runtime->gradient_ready(id, gradient);
      }
      runtime->backward_ends(boundary);
    }
    emitter.at(Pass::Step);
    emitter.mark(Moment::StepBegins, stretch);
    runtime->step(stretch == Stretch::FirstStep);
    emitter.mark(Moment::StepEnds, stretch);
  }
  return emitter.finish();
}

}  // namespace

TEST_CASE("the tiny example is what DeepSpeed did") {
  const ModelSpec model = tiny_model();
  for (const char* name : {"z1-tiny", "z2-tiny", "z2-tiny-accumulate", "z2-tiny-per-owner"}) {
    const Run witness = read_run(name);
    const Job job = job_of_witness(witness, model);
    REQUIRE(witness.ranks.size() == 4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const Schedule schedule = drive(job, model, static_cast<std::int64_t>(rank));
      const std::vector<int> numbers = numbers_of(witness, model);
      const std::string difference = first_difference(moves_of(witness.ranks[rank], 2), Ours(schedule, numbers).take());
      CHECK_MESSAGE(difference.empty(), name, " rank ", rank, ": ", difference);
    }
  }
}

namespace {

// Position of the first allocation with this label, in the first step's first backward; -1 if there is none.
std::ptrdiff_t first_allocation(const Schedule& schedule, std::string_view label) {
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const auto* made = std::get_if<Allocate>(&schedule.events[at]);
    if (made != nullptr && schedule.buffers[made->buffer].label == label) return static_cast<std::ptrdiff_t>(at);
  }
  return -1;
}

}  // namespace

TEST_CASE("versions of DeepSpeed: both sides of each switch below ZeRO-3") {
  const ModelSpec model = tiny_model();
  Job job = job_of_witness(read_run("z2-tiny"), model);
  const auto at = [&](Version version) {
    job.training.deepspeed = version;
    return drive(job, model, 1);
  };
  CHECK(first_allocation(at({0, 19, 5}), "overflow scan") >= 0);
  CHECK(first_allocation(at({0, 19, 6}), "overflow scan") == -1);
  const Schedule before = at({0, 18, 2});
  CHECK(first_allocation(before, "gradient bucket") < first_allocation(before, "gradient"));
  const Schedule since = at({0, 18, 3});
  CHECK(first_allocation(since, "gradient bucket") > first_allocation(since, "gradient"));
  job.training.grad_accum_dtype = DType::Float32;
  CHECK(first_allocation(at({0, 19, 8}), "gradient partition") >= 0);
  const Run llama = read_run("z2-llama-sums-fp32");
  const ModelSpec real = model_of_witness(llama);
  Job sums = job_of_witness(llama, real);
  CHECK(!unsupported(real, sums));
  // Before, ZeRO-2 kept 16 bits all the same (deepspeed_versions_test.cpp), and ZeRO-1 has no schedule.
  sums.training.deepspeed = Version{0, 19, 7};
  CHECK(!unsupported(real, sums));
  Job once = job_of_witness(read_run("z1-llama-fp16-sums-fp32"), real);
  CHECK(!unsupported(real, once));
  once.training.deepspeed = Version{0, 19, 7};
  CHECK(unsupported(real, once).has_value());
}

TEST_CASE("a bucket is there from the first gradient on, not from the first that is copied") {
  for (const char* name : {"z1-llama", "z2-llama"}) {
    const Lines log = read_run(name).ranks.at(0);
    const auto bucket = std::find_if(log.begin(), log.end(),
                                     [](const std::string& line) { return line.find("setup_buckets") != line.npos; });
    REQUIRE(bucket != log.end());
    CHECK(std::count_if(log.begin(), bucket, [](const std::string& line) { return line[0] == 'g'; }) == 1);
  }
}

namespace {

// Gradients as they arrive, and reductions of the first backward.
Lines arrivals_and_reductions(const Lines& log) {
  Lines out;
  bool inside = false;
  for (const std::string& line : log) {
    const std::vector<std::string> word = words(line);
    if (line == "# backward 0.0") inside = true;
    if (word[0] == "#" && word[1] == "step") break;
    if (!inside) continue;
    if (word[0][0] == 'g' && word.size() == 4) out.push_back("gradient " + word[3]);
    if (word[0] == "c") out.push_back(word[1]);
  }
  return out;
}

Lines arrivals_and_reductions(const Schedule& schedule, const std::vector<int>& numbers) {
  Lines out;
  bool inside = false;
  for (const Event& event : schedule.events) {
    if (const auto* mark = std::get_if<Mark>(&event)) {
      if (mark->moment == Moment::StepBegins) break;
      inside = inside || mark->moment == Moment::BackwardBegins;
    }
    if (!inside) continue;
    if (const auto* made = std::get_if<Allocate>(&event)) {
      const Buffer& buffer = schedule.buffers[made->buffer];
      if (buffer.role == Role::Gradients && buffer.parameter != kNone) {
        out.push_back(dsplan::formatted("gradient {}", numbers.at(static_cast<std::size_t>(buffer.parameter))));
      }
    }
    if (const auto* sent = std::get_if<Communicate>(&event)) out.emplace_back(name(sent->collective));
  }
  return out;
}

// Which gradients are there when the reductions run: how many have arrived before each.
std::vector<std::ptrdiff_t> arrived_before_each(const Lines& lines) {
  std::vector<std::ptrdiff_t> counts;
  std::ptrdiff_t arrived = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("gradient")) {
      ++arrived;
    } else {
      counts.push_back(arrived);
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("a gradient larger than the bucket waits for the next one") {
  for (const char* name : {"z2-llama-large", "z2-llama-large-straddles"}) {
    const Run witness = read_run(name);
    const ModelSpec model = model_of_witness(witness);
    const Job job = job_of_witness(witness, model);
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    const Lines theirs = arrivals_and_reductions(witness.ranks.front());
    const Lines ours = arrivals_and_reductions(schedule, numbers_of(witness, model));
    CAPTURE(name);
    REQUIRE(theirs.front() == "gradient 20");  // The head's 1,152 elements, more than the bucket has.
    CHECK(arrived_before_each(ours) == arrived_before_each(theirs));
    CHECK(arrived_before_each(ours).front() >= 2);
  }
}

TEST_CASE("versions of DeepSpeed: parameters are flattened through the host before 0.18.7") {
  const ModelSpec model = tiny_model();
  Job job = job_of_witness(read_run("z2-tiny"), model);
  const auto at = [&](Version version) {
    job.training.deepspeed = version;
    return drive(job, model, 1);
  };
  CHECK(first_allocation(at({0, 18, 6}), "flat parameters on the host") >= 0);
  CHECK(first_allocation(at({0, 18, 7}), "flat parameters on the host") == -1);
  const Run llama = read_run("z2-llama");
  const ModelSpec real = model_of_witness(llama);
  Job old = job_of_witness(llama, real);
  CHECK(!unsupported(real, old));
  old.training.deepspeed = Version{0, 12, 4};
  CHECK(!unsupported(real, old));
  old.training.deepspeed = Version{0, 12, 3};
  CHECK(unsupported(real, old) == "weights gathered in shards before DeepSpeed 0.12.4");
}

TEST_CASE("versions of DeepSpeed: 0.17.2 alone sends every gradient behind the first full bucket by itself") {
  const Run witness = read_run("z3-llama-bucket-small");
  const ModelSpec model = model_of_witness(witness);
  Job job = job_of_witness(witness, model);
  const auto reductions = [&](Version version) {
    job.training.deepspeed = version;
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    return std::count_if(schedule.events.begin(), schedule.events.end(), [](const Event& event) {
      const auto* sent = std::get_if<Communicate>(&event);
      return sent != nullptr && sent->collective == Collective::ReduceScatter;
    });
  };
  CHECK(reductions({0, 17, 1}) == reductions({0, 17, 3}));
  CHECK(reductions({0, 17, 2}) > reductions({0, 17, 3}));
}

TEST_CASE("a model that is given to ZeRO-3 whole") {
  const Run witness = read_run("z3-llama-init-after");
  const ModelSpec model = model_of_witness(witness);
  Job job = job_of_witness(witness, model);
  CHECK(job.training.model_init == ModelInit::Device);
  CHECK(!unsupported(model, job));
  // Until 0.19.4 PyTorch's own linear function ran then, and its views of the weights.
  job.training.deepspeed = Version{0, 19, 3};
  CHECK(unsupported(model, job) == "a model built outside zero.Init before DeepSpeed 0.19.4");
  job.training.model_init = ModelInit::ZeroInit;
  CHECK(!unsupported(model, job));
}
