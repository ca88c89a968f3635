#include "exec/runner/operator_work.h"

#include <algorithm>

#include "exec/runner/parallel.h"

namespace dsplan::exec {

OperatorWork::OperatorWork(const RankPlan& plan, const RunSettings& settings, Device& device, const RankMemory& memory,
                           Launcher& launcher, Values& values, const Text& text)
    : plan_(plan),
      settings_(settings),
      device_(device),
      memory_(memory),
      launcher_(launcher),
      values_(values),
      text_(text) {
  for (const Graph& graph : plan.graphs) {
    draws_.push_back(drawing_order(graph));
    if (plan.schedule.tp > 1) on_parts_.push_back(works_on_parts(plan.model, graph));
  }
}

dsplan_tensor OperatorWork::tensor_of(const TensorAt& at) const {
  return tensor_at(memory_.pointer(at.buffer) + at.offset.value(), at.what);
}

// What a kernel does not need may be gone.
std::vector<dsplan_tensor> OperatorWork::held(std::span<const std::optional<TensorAt>> tensors) const {
  std::vector<dsplan_tensor> result;
  for (const std::optional<TensorAt>& tensor : tensors) {
    result.push_back(tensor && memory_.holds(tensor->buffer) ? tensor_of(*tensor) : dsplan_tensor{});
  }
  return result;
}

void OperatorWork::run(const Task& task, double loss_scale) {
  if (task.body == Body::MakeBatch) return make_batch(task);
  const Values::Operands operands = values_.operands(task);
  const std::vector<dsplan_tensor> in = held(operands.in);
  std::vector<dsplan_tensor> made = held(operands.made);
  if (task.body == Body::Forward || task.body == Body::Backward) return run_node(task, in, made);
  const double seed = settings_.seed_of_backward(loss_scale);
  Parameters parameters;
  if (task.body == Body::LossSeed) parameters.numbers = {&seed, 1};
  device_.launch(launch_of(task.body, in, made, parameters));
}

void OperatorWork::run_node(const Task& task, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made) {
  const Graph& graph = plan_.graphs[task.graph];
  const Node& node = graph.node(task.node);
  std::vector<dsplan_tensor> written;
  const std::span<const MadeValue> names = plan_.program.made_by(task);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const bool is_input =
        task.body == Body::Forward && node.in_place && names[i].kind == SlotKind::Output && names[i].index == 0;
    if (!is_input) written.push_back(made[i]);
  }
  const Attributes attributes = attributes_of(graph, node, plan_.program.device);
  dsplan_launch what = launch_of(task.body, in, written, {attributes.integers, attributes.numbers, random_for(task)});
  what.op = static_cast<std::uint32_t>(node.op);
  what.part = task.part;
  lend_workspace(what);
  device_.launch(what);
}

// Dropout of one operator in one micro-batch of all ranks together.
dsplan_random OperatorWork::random_for(const Task& task) const {
  const std::int64_t batch = micro_batches_ - 1;
  dsplan_random random{};
  random.key =
      random_key(settings_.seed, DrawnFor::Dropout, draws_[task.graph][task.node], static_cast<std::uint64_t>(batch));
  const bool apart = !on_parts_.empty() && on_parts_[task.graph][task.node];
  if (apart) random.key = mixed(random.key ^ static_cast<std::uint64_t>(plan_.tensor_rank + 1));
  random.samples = settings_.micro_batch;
  random.first_sample = plan_.schedule.rank * settings_.micro_batch;
  return random;
}

void OperatorWork::workspace_came(BufferId buffer) {
  if (workspace_ == kNoBuffer) workspace_ = buffer;
}

void OperatorWork::workspace_goes(BufferId buffer) {
  if (workspace_ == buffer) workspace_ = kNoBuffer;
}

// Products run one after the other, on one stream: one buffer serves all of them, and an equal product that runs again
// finds it as large as before, so that the library chooses alike.
void OperatorWork::lend_workspace(dsplan_launch& what) const {
  const auto op = static_cast<Op>(what.op);
  if (workspace_ == kNoBuffer || (op != Op::Linear && op != Op::Matmul && op != Op::Bmm)) return;
  what.workspace = memory_.pointer(workspace_);
  what.workspace_bytes = plan_.schedule.buffers[workspace_].size.value();
}

// Token ids, or the pixels of pictures; labels (the ids: the model shifts them; or numbers of classes), and where it is
// asked for a mask of ones. What stands for a row is its sample's stretch of the text.
void OperatorWork::make_batch(const Task& task) {
  const Values::Operands operands = values_.operands(task);
  const TensorAt& target = *operands.made.front();
  const std::int64_t rows = target.what.layout.dims[0];
  const std::int64_t length = target.what.layout.elements() / rows;
  const bool pixels = is_floating(target.what.dtype);
  const std::int64_t classes = task.part == 1 ? plan_.model.dims.labels : 0;
  const std::int64_t values = pixels ? 256 : classes > 0 ? classes : plan_.model.dims.vocab;
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    // Samples of an optimizer step are dealt micro-batch by micro-batch, rank by rank.
    const std::int64_t sample = ((micro_batches_ - 1) * settings_.ranks + plan_.schedule.rank) * rows + row;
    const std::vector<std::int64_t> tokens = text_.tokens(sample, length, values);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  if (task.part == 2) std::fill(ids.begin(), ids.end(), 1);
  const Piece piece{memory_.pointer(target.buffer), target.what.dtype, rows * length, Space::Device};
  if (!pixels) return launcher_.write(piece, ids.data(), target.what.bytes().value());
  DSPLAN_CHECK(target.what.dtype == DType::Float32, "pixels come in fp32");
  std::vector<float> shades;
  for (const std::int64_t id : ids) shades.push_back(static_cast<float>(id - 96) / 32);
  launcher_.write(piece, shades.data(), target.what.bytes().value());
}

void OperatorWork::take_loss(ValueId value) {
  const TensorAt& loss = values_.at(value);
  losses_.push_back(launcher_.number_at({memory_.pointer(loss.buffer), loss.what.dtype, 1, Space::Device}));
}

}  // namespace dsplan::exec
