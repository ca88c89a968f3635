#include "exec/runner/runner.h"

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {

Parted::Parted(std::int64_t rank, std::size_t event, std::string text)
    : event_(event), text_(formatted("rank {}, event {}: {}", rank, event, text)) {}

namespace {

// Both sums after the event, role by role.
void compare(const RankPlan& plan, const ByRole& predicted, const ByRole& measured, std::size_t at) {
  if (predicted == measured) return;
  for (std::size_t role = 0; role < kRoles; ++role) {
    if (predicted.bytes[role] == measured.bytes[role]) continue;
    throw Parted(plan.rank(), at,
                 formatted("{}: predicted {} B, measured {} B ({})", name(static_cast<Role>(role)),
                           predicted.bytes[role].value(), measured.bytes[role].value(),
                           describe_moment(plan.schedule, plan.model, at)));
  }
}

}  // namespace

Runner::Runner(const RankPlan& plan, const RunSettings& settings, const MemoryMeter& meter, Device& device,
               RankMemory& memory, Communicators& communicators, const Text& text, const Observer& observer)
    : plan_(plan),
      settings_(settings),
      meter_(meter),
      device_(device),
      memory_(memory),
      observer_(observer),
      makers_(plan_.program),
      values_(plan_.graphs, plan_.program),
      launcher_(plan_, device, memory),
      stream_events_(device, plan_.schedule),
      exposed_(device),
      operators_(plan_, settings_, device, memory, launcher_, values_, text),
      flat_(plan_, settings_, device, memory, launcher_),
      collectives_(device, launcher_, communicators, exposed_),
      optimizer_(plan_, settings_, launcher_) {
  if (!plan.program.unknown_work.empty()) {
    throw Refusal("run", formatted("cannot be executed yet: {}", dsplan::joined(plan.program.unknown_work, "; ")));
  }
}

void Runner::on(std::size_t at, const Allocate& event) {
  arrive(at);
  const Buffer& planned = plan_.schedule.buffers[event.buffer];
  memory_.allocate(event.buffer, size_of(at, event.buffer), planned.role, planned.space, event.stream);
  if (planned.role == Role::Workspace) operators_.workspace_came(event.buffer);
  compare(plan_, meter_.by_role(), memory_.demand().by_role, at);
}

void Runner::on(std::size_t at, const Release& event) {
  arrive(at);
  memory_.release(event.buffer);
  operators_.workspace_goes(event.buffer);
  compare(plan_, meter_.by_role(), memory_.demand().by_role, at);
}

void Runner::on(std::size_t at, const Compute& event) {
  arrive(at);
  memory_.work(event.stream, plan_.schedule.range(event.reads), plan_.schedule.range(event.writes));
  device_.use(event.stream);
  const Task& task = task_at(at);
  if (works_on_values(task.body)) return operators_.run(task, optimizer_.loss_scale());
  if (!optimizer_.run(task)) flat_.run(task);
}

void Runner::on(std::size_t at, const Communicate& event) {
  arrive(at);
  memory_.work(event.stream, plan_.schedule.range(event.reads), plan_.schedule.range(event.writes));
  device_.use(event.stream);
  const Task& task = task_at(at);
  collectives_.run(at, event, task);
  optimizer_.received(task, is_flag(event));
}

void Runner::on(std::size_t at, const RecordEvent& event) {
  arrive(at);
  memory_.happens(event);
  stream_events_.record(event);
}

// How long the compute stream stands still is communication that nothing hides.
void Runner::on(std::size_t at, const WaitEvent& event) {
  arrive(at);
  if (!device_.synchronous()) exposed_.around(event.waiter, [&] { stream_events_.wait(event); });
  memory_.happens(event);
}

void Runner::on(std::size_t at, const EmptyCache& event) {
  arrive(at);
  memory_.happens(event);
}

void Runner::on(std::size_t at, const Mark& event) {
  arrive(at);
  // So that a clock on the host tells the time of work, and a failure the pass in which it happened.
  if (!device_.synchronous()) {
    device_.synchronize();
    exposed_.settle();
  }
  if (event.moment == Moment::MicroBatchBegins) operators_.begin_micro_batch();
  if (event.moment == Moment::StepBegins) optimizer_.begin();
  if (event.moment == Moment::StepEnds) optimizer_.end();
  if (observer_.mark) observer_.mark(event, memory_);
}

// Tasks that take no event carry the index of the event before which they happen: views, and gradients that are ready.
void Runner::arrive(std::size_t at) {
  const std::vector<Task>& tasks = plan_.program.tasks;
  for (; next_task_ < tasks.size() && tasks[next_task_].event <= at; ++next_task_) {
    const Task& task = tasks[next_task_];
    const bool silent =
        task.body == Body::ForwardView || task.body == Body::BackwardView || task.body == Body::GradientReady;
    if (!silent) break;
    values_.apply(task);
    if (task.body == Body::GradientReady && observer_.gradient) {
      observer_.gradient(task.parameter, operators_.tensor_of(values_.at(plan_.program.in(task).front())));
    }
  }
  const std::vector<LossValue>& losses = plan_.program.losses;
  for (; next_loss_ < losses.size() && losses[next_loss_].event <= at; ++next_loss_) {
    operators_.take_loss(losses[next_loss_].value);
  }
}

const Task& Runner::task_at(std::size_t at) {
  const std::vector<Task>& tasks = plan_.program.tasks;
  DSPLAN_CHECK(next_task_ < tasks.size() && tasks[next_task_].event == at,
               formatted("event {} has no task in the program", at));
  return tasks[next_task_++];
}

Bytes Runner::size_of(std::size_t at, BufferId buffer) {
  const Buffer& planned = plan_.schedule.buffers[buffer];
  const Task* task = makers_.of(buffer);
  if (task == nullptr) return planned.size;  // A runtime's own: held against footprint's formulas instead.
  const std::optional<Bytes> wanted = values_.bytes_wanted(*task, buffer);
  if (wanted && *wanted > Bytes(0)) return *wanted;
  throw Parted(plan_.rank(), at,
               formatted("{}: the plan makes {} B that the operator does not", planned.label, planned.size.value()));
}

}  // namespace dsplan::exec
