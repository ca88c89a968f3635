#include "exec/runner.h"

#include "core/error.h"
#include "core/format.h"
#include "exec/data.h"
#include "exec/parallel.h"

namespace dsplan::exec {

namespace {

bool can_step(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
    case OptimizerKind::Sgd:
    case OptimizerKind::Lion:
    case OptimizerKind::Adagrad:
    case OptimizerKind::RmsProp: return true;
    default: return false;
  }
}

}  // namespace

Parted::Parted(std::int64_t rank, std::size_t event, std::string text)
    : event_(event), text_(formatted("rank {}, event {}: {}", rank, event, text)) {}

Runner::Runner(const RankPlan& plan, const RunSettings& settings, const MemoryMeter& meter, Device& device,
               RankMemory& memory, Communicators& communicators, const Text& text, const Observer& observer)
    : plan_(plan),
      settings_(settings),
      meter_(meter),
      device_(device),
      memory_(memory),
      communicators_(communicators),
      text_(text),
      observer_(observer),
      values_(plan.graphs, plan.program),
      clock_(device),
      stream_events_(device, plan.schedule),
      scale_(settings.loss_scaling),
      taken_scale_(scale_.now()) {
  if (!can_step(settings.optimizer)) {
    throw Refusal("run", formatted("the step of {} cannot be executed yet: those of Adam, AdamW, SGD, Lion, Adagrad "
                                   "and RMSprop can",
                                   name(settings.optimizer)));
  }
  if (!plan.program.unknown_work.empty()) {
    throw Refusal("run", formatted("cannot be executed yet: {}", dsplan::joined(plan.program.unknown_work, "; ")));
  }
  for (const Graph& graph : plan.graphs) {
    draws_.push_back(drawing_order(graph));
    if (plan.schedule.tp > 1) on_parts_.push_back(works_on_parts(plan.model, graph));
  }
  const auto has = [&](Body body) {
    return std::any_of(plan.program.tasks.begin(), plan.program.tasks.end(),
                       [&](const Task& task) { return task.body == body; });
  };
  clips_apart_ = has(Body::Clip);
  unscales_apart_ = has(Body::Unscale);
  registers_ = static_cast<std::byte*>(device_.allocate(Space::Device, Bytes(kBlockBytes)));
}

Runner::~Runner() { device_.release(Space::Device, registers_, Bytes(kBlockBytes)); }

// Tasks that take no event carry the index of the event before which they happen.
void Runner::arrive(std::size_t at) {
  event_ = at;
  const std::vector<Task>& tasks = plan_.program.tasks;
  while (next_task_ < tasks.size() && tasks[next_task_].event <= at) {
    const Task& task = tasks[next_task_];
    const bool silent =
        task.body == Body::ForwardView || task.body == Body::BackwardView || task.body == Body::GradientReady;
    if (!silent) break;
    values_.apply(task);
    if (task.body == Body::GradientReady && observer_.gradient) {
      observer_.gradient(task.parameter, tensor_of(values_.at(plan_.program.in(task).front())));
    }
    ++next_task_;
  }
  const std::vector<LossValue>& losses = plan_.program.losses;
  for (; next_loss_ < losses.size() && losses[next_loss_].event <= at; ++next_loss_)
    take_loss(losses[next_loss_].value);
}

const Task& Runner::task_at(std::size_t at) {
  const std::vector<Task>& tasks = plan_.program.tasks;
  DSPLAN_CHECK(next_task_ < tasks.size() && tasks[next_task_].event == at,
               formatted("event {} has no task in the program", at));
  return tasks[next_task_++];
}

Bytes Runner::size_of(BufferId buffer) {
  const Buffer& planned = plan_.schedule.buffers[buffer];
  const Task* task = values_.maker_of(buffer);
  if (task == nullptr) return planned.size;  // A runtime's own: held against footprint's formulas instead.
  const std::optional<Bytes> wanted = values_.bytes_wanted(*task, buffer);
  if (wanted && *wanted > Bytes(0)) return *wanted;
  throw Parted(plan_.rank(), event_,
               formatted("{}: the plan makes {} B that the operator does not", planned.label, planned.size.value()));
}

void Runner::on(std::size_t at, const Allocate& event) {
  arrive(at);
  const Buffer& planned = plan_.schedule.buffers[event.buffer];
  memory_.allocate(event.buffer, size_of(event.buffer), planned.role, planned.space, event.stream);
  if (planned.role == Role::Workspace && workspace_ == kNoBuffer) workspace_ = event.buffer;
  compare(at);
}

void Runner::on(std::size_t at, const Release& event) {
  arrive(at);
  memory_.release(event.buffer);
  if (workspace_ == event.buffer) workspace_ = kNoBuffer;
  compare(at);
}

void Runner::compare(std::size_t at) const {
  const ByRole& predicted = meter_.by_role();
  const ByRole& measured = memory_.by_role();
  if (predicted == measured) return;
  for (std::size_t role = 0; role < kRoles; ++role) {
    if (predicted.bytes[role] == measured.bytes[role]) continue;
    throw Parted(plan_.rank(), at,
                 formatted("{}: predicted {} B, measured {} B ({})", name(static_cast<Role>(role)),
                           predicted.bytes[role].value(), measured.bytes[role].value(),
                           describe_moment(plan_.schedule, plan_.model, at)));
  }
}

void Runner::on(std::size_t at, const Compute& event) {
  arrive(at);
  memory_.work(event.stream, plan_.schedule.range(event.reads), plan_.schedule.range(event.writes));
  device_.use(event.stream);
  const Task& task = task_at(at);
  if (works_on_values(task.body)) {
    run_operator(task);
  } else {
    run_flat(task);
  }
}

void Runner::on(std::size_t at, const RecordEvent& event) {
  arrive(at);
  memory_.record_event(event);
  stream_events_.record(event);
}

void Runner::on(std::size_t at, const WaitEvent& event) {
  arrive(at);
  // How long the compute stream stands still is communication that nothing hides.
  const bool stands = event.waiter == kComputeStream && !device_.synchronous();
  if (stands) clock_.begin(kComputeStream);
  stream_events_.wait(event);
  if (stands) clock_.end(kComputeStream);
  memory_.wait_event(event);
}

// So that a clock on the host tells the time of work, and a failure the pass in which it happened.
void Runner::drain() {
  if (device_.synchronous()) return;
  device_.synchronize();
  clock_.settle();
}

void Runner::on(std::size_t at, const Mark& event) {
  arrive(at);
  drain();
  if (event.moment == Moment::MicroBatchBegins) ++micro_batches_;
  if (event.moment == Moment::StepBegins) ++steps_;
  if (event.moment == Moment::StepEnds) end_step();
  if (observer_.mark) observer_.mark(event, memory_);
}

dsplan_tensor Runner::tensor_of(const TensorAt& at) const {
  return tensor_at(memory_.pointer(at.buffer) + at.offset.value(), at.what);
}

// Dropout of one operator in one micro-batch of all ranks together.
dsplan_random Runner::random_for(const Task& task) const {
  const std::int64_t batch = micro_batches_ - 1;
  dsplan_random random{};
  random.key = random_key(settings_.seed, DrawnFor::Dropout, draws_[task.graph][static_cast<std::size_t>(task.node)],
                          static_cast<std::uint64_t>(batch));
  const bool apart = !on_parts_.empty() && on_parts_[task.graph][static_cast<std::size_t>(task.node)];
  if (apart) random.key = mixed(random.key ^ static_cast<std::uint64_t>(plan_.tensor_rank + 1));
  random.samples = settings_.micro_batch;
  random.first_sample = plan_.schedule.rank * settings_.micro_batch;
  return random;
}

// Products run one after the other, on one stream: one buffer serves all of them, and an equal product that runs again
// finds it as large as before, so that the library chooses alike.
void Runner::lend_workspace(dsplan_launch& what) const {
  const auto op = static_cast<Op>(what.op);
  if (workspace_ == kNoBuffer || (op != Op::Linear && op != Op::Matmul)) return;
  what.workspace = memory_.pointer(workspace_);
  what.workspace_bytes = plan_.schedule.buffers[workspace_].size.value();
}

void Runner::run_operator(const Task& task) {
  if (task.body == Body::MakeBatch) return make_batch(task);
  const Values::Operands operands = values_.operands(task);
  std::vector<dsplan_tensor> in;
  std::vector<dsplan_tensor> made;
  for (const std::optional<TensorAt>& tensor : operands.in) {
    in.push_back(tensor && memory_.holds(tensor->buffer) ? tensor_of(*tensor) : dsplan_tensor{});
  }
  const std::span<const MadeValue> names = plan_.program.made_by(task);
  const bool in_place = task.body == Body::Forward && plan_.graphs[task.graph].node(task.node).in_place;
  for (std::size_t i = 0; i < operands.made.size(); ++i) {
    if (in_place && names[i].kind == SlotKind::Output && names[i].index == 0) continue;  // It is input 0.
    const std::optional<TensorAt>& tensor = operands.made[i];
    made.push_back(tensor && memory_.holds(tensor->buffer) ? tensor_of(*tensor) : dsplan_tensor{});
  }
  if (task.body == Body::LossSeed) {
    const double seed = settings_.seed_of_backward(scale_.now());
    return launch(task.body, in, made, {}, {&seed, 1});
  }
  if (task.body != Body::Forward && task.body != Body::Backward) return launch(task.body, in, made);
  const Graph& graph = plan_.graphs[task.graph];
  const Node& node = graph.node(task.node);
  const Attributes attributes = attributes_of(graph, node);
  dsplan_launch what{};
  what.size = sizeof what;
  what.body = static_cast<std::uint32_t>(task.body);
  what.op = static_cast<std::uint32_t>(node.op);
  what.part = task.part;
  what.inputs = in.data();
  what.input_count = static_cast<std::uint32_t>(in.size());
  what.made = made.data();
  what.made_count = static_cast<std::uint32_t>(made.size());
  what.integers = attributes.integers.data();
  what.integer_count = static_cast<std::uint32_t>(attributes.integers.size());
  what.numbers = attributes.numbers.data();
  what.number_count = static_cast<std::uint32_t>(attributes.numbers.size());
  what.random = random_for(task);
  lend_workspace(what);
  device_.launch(what);
}

// Token ids, labels (the same: the model shifts them), and where it is asked for a mask of ones.
void Runner::make_batch(const Task& task) {
  const Values::Operands operands = values_.operands(task);
  const TensorAt& target = *operands.made.front();
  const std::int64_t rows = target.what.layout.dims[0];
  const std::int64_t length = target.what.layout.dims[1];
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    // Samples of an optimizer step are dealt micro-batch by micro-batch, rank by rank.
    const std::int64_t sample = ((micro_batches_ - 1) * settings_.ranks + plan_.schedule.rank) * rows + row;
    const std::vector<std::int64_t> tokens = text_.tokens(sample, length, plan_.model.dims.vocab);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  if (task.part == 2) std::fill(ids.begin(), ids.end(), 1);
  const Piece piece{memory_.pointer(target.buffer), target.what.dtype, rows * length, Space::Device};
  to_device(piece, ids.data(), target.what.bytes().value());
}

void Runner::take_loss(ValueId value) {
  const TensorAt& loss = values_.at(value);
  losses_.push_back(scalar_at({memory_.pointer(loss.buffer), loss.what.dtype, 1, Space::Device}));
}

}  // namespace dsplan::exec
