#include "model/catalogue/describe.h"

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace dsplan {
namespace {

struct SampleTensor {
  const char* name;
  Shape shape;
  DType dtype = DType::BFloat16;
  bool gradient = true;
};

// An operator with inputs whose sizes tell them apart, and names for sizes that no tensor has.
struct Sample {
  std::vector<SampleTensor> inputs;
  std::vector<SampleTensor> outputs;
  std::vector<std::pair<const char*, std::int64_t>> sizes;
  AttentionKernel kernel = AttentionKernel::None;
  double number = 2;
};

const Shape kWide{3, 5, 7};

Sample one_input(Shape out) { return {{{"self", kWide}}, {{"out", out}}, {}}; }

Sample indexed(const char* index) {
  return {{{"self", kWide}, {index, Shape{2, 5, 7}, DType::Int64, false}}, {{"out", Shape{2, 5, 7}}}, {}};
}

Sample loss(const char* target, DType dtype) {
  const bool classes = dtype == DType::Int64;
  const Shape shape = classes ? Shape{15} : Shape{15, 7};
  return {{{"self", Shape{15, 7}}, {target, shape, dtype, false}}, {{"out", Shape{1}}}, {}};
}

Sample attention(AttentionKernel kernel) {
  const Shape q{2, 4, 100, 64};
  const Shape kv{2, 4, 90, 64};
  Sample sample{{{"query", q}, {"key", kv}, {"value", kv}},
                {{"out", q}},
                {{"B H Sq", 2 * 4 * 100}, {"B H Sq^32", 2 * 4 * 128}, {"B H Sq^128 D^32", 2 * 4 * 128 * 64}}};
  if (kernel == AttentionKernel::Flash) sample.sizes[1].first = "B H Sq^128";
  sample.kernel = kernel;
  return sample;
}

Sample norm(Op op) {
  if (op == Op::GroupNorm || op == Op::BatchNorm) {
    Sample sample{{{"input", Shape{3, 4, 5, 7}}, {"weight", Shape{4}}, {"bias", Shape{4}}},
                  {{"out", Shape{3, 4, 5, 7}}},
                  {{"N groups", 6}, {"channels", 4}}};
    if (op == Op::BatchNorm) {
      for (const char* name : {"running_mean", "running_var"}) {
        sample.inputs.push_back({name, Shape{4}, DType::Float32, false});
      }
    }
    return sample;
  }
  Sample sample{
      {{"input", Shape{3, 5, 7}}, {"weight", Shape{7}}, {"bias", Shape{7}}}, {{"out", Shape{3, 5, 7}}}, {{"rows", 15}}};
  if (op == Op::RmsNorm) sample.inputs.pop_back();
  return sample;
}

Sample product(Op op) {
  const Shape a{2, 3, 5};
  switch (op) {
    case Op::Linear:
      return {{{"input", Shape{6, 5}}, {"weight", Shape{7, 5}}, {"bias", Shape{7}}}, {{"out", Shape{6, 7}}}, {}};
    case Op::Mm: return {{{"self", Shape{6, 5}}, {"mat2", Shape{5, 7}}}, {{"out", Shape{6, 7}}}, {}};
    case Op::GroupedMatmul:
      return {{{"self", Shape{6, 5}}, {"mat2", Shape{2, 5, 7}}, {"offs", Shape{2}, DType::Int32, false}},
              {{"out", Shape{6, 7}}},
              {}};
    case Op::Conv2d:
      return {{{"input", Shape{2, 3, 8, 8}}, {"weight", Shape{4, 3, 3, 3}}, {"bias", Shape{4}}},
              {{"out", Shape{2, 4, 8, 8}}},
              {}};
    case Op::ChunkedLogProb:
      return {{{"hidden", Shape{16, 8}}, {"weight", Shape{40, 8}}, {"target", Shape{16}, DType::Int64, false}},
              {{"log_probs", Shape{16}, DType::Float32}},
              {{"rows", 16}, {"rows x 32768", 16 * 32768}}};
    case Op::CutCrossEntropy:
      return {{{"hidden", Shape{16, 8}},
               {"weight", Shape{40, 8}},
               {"labels", Shape{16}, DType::Int64, false},
               {"places", Shape{12}, DType::Int64, false}},
              {{"loss", Shape{}, DType::Float32}},
              {{"places", 12}, {"V", 40}}};
    case Op::FusedLinearCrossEntropy:
      return {{{"input", Shape{16, 8}}, {"weight", Shape{40, 8}}, {"target", Shape{16}, DType::Int64, false}},
              {{"out", Shape{1}}},
              {{"rows", 16}, {"chunk x V", 4 * 40}}};
    default: return {{{"self", a}, {"mat2", Shape{2, 5, 7}}}, {{"out", Shape{2, 3, 7}}}, {}};
  }
}

Sample picking(Op op) {
  const Shape out{2, 5, 7};
  switch (op) {
    case Op::Embedding:
      return {{{"weight", Shape{11, 13}}, {"indices", Shape{5}, DType::Int64, false}}, {{"out", Shape{5, 13}}}, {}};
    case Op::IndexAdd:
      return {{{"self", kWide}, {"index", Shape{2}, DType::Int64, false}, {"source", out}}, {{"out", kWide}}, {}};
    case Op::NonZero: return {{{"self", kWide}}, {{"out", Shape{4, 3}, DType::Int64, false}}, {}};
    case Op::Scatter:
    case Op::ScatterAdd:
      return {{{"self", kWide}, {"index", out, DType::Int64, false}, {"src", out}}, {{"out", kWide}}, {}};
    case Op::MaskedRows:
      return {{{"self", kWide}, {"mask", Shape{3, 5}, DType::Bool, false}}, {{"out", Shape{15, 7}}}, {}};
    case Op::MaskedPut:
      return {
          {{"self", kWide}, {"mask", Shape{3, 5}, DType::Bool, false}, {"values", Shape{4, 7}}}, {{"out", kWide}}, {}};
    case Op::MaskedScatter:
      return {{{"self", kWide}, {"mask", kWide, DType::Bool, false}, {"source", out}}, {{"out", kWide}}, {}};
    case Op::TopK:
    case Op::Sort: return {{{"self", kWide}}, {{"values", out}, {"indices", out, DType::Int64, false}}, {}};
    default: return indexed("index");
  }
}

Sample of_several(Op op) {
  switch (op) {
    case Op::Where:
      return {
          {{"condition", kWide, DType::Bool, false}, {"self", kWide}, {"other", kWide}}, {{"out", kWide}}, {{"1", 1}}};
    case Op::AddInto: return {{{"self", kWide}, {"other", kWide}}, {{"out", kWide}}, {}};
    case Op::GridSample:
      return {{{"input", Shape{1, 4, 5, 6}}, {"grid", Shape{1, 7, 1, 2}}}, {{"out", Shape{1, 4, 7, 1}}}, {}};
    case Op::CopyInto: return {{{"self", kWide}, {"src", Shape{3, 5, 2}}}, {{"out", kWide}}, {}};
    case Op::MaskedFill:
    case Op::MaskedFillInPlace: return {{{"self", kWide}, {"mask", kWide, DType::Bool, false}}, {{"out", kWide}}, {}};
    case Op::Prelu: return {{{"self", kWide}, {"weight", Shape{5}}}, {{"out", kWide}}, {}};
    case Op::ComplexMul:
      return {{{"self", Shape{3, 5, 2}}, {"other", Shape{5, 2}, DType::Float32, false}}, {{"out", Shape{3, 5, 2}}}, {}};
    case Op::Polar:
      return {{{"angle", kWide, DType::BFloat16, false}}, {{"out", Shape{3, 5, 7, 2}, DType::BFloat16, false}}, {}};
    case Op::Addcmul: return {{{"self", kWide}, {"tensor1", kWide}, {"tensor2", kWide}}, {{"out", kWide}}, {}};
    default: return {{{"self", kWide}, {"other", kWide}}, {{"out", kWide}}, {}};
  }
}

// Adapters in the dtype of what comes in.
Sample of_adapters(Op op) {
  const Shape wide{3, 5, 7};
  if (op == Op::AdaptedLinear) {
    return {
        {{"input", wide}, {"weight", Shape{11, 7}, DType::BFloat16, false}, {"A", Shape{2, 7}}, {"B", Shape{11, 2}}},
        {{"out", Shape{3, 5, 11}}},
        {{"rows x rank", 15 * 2}}};
  }
  return {{{"input", wide},
           {"gate", Shape{11, 7}, DType::BFloat16, false},
           {"gate A", Shape{2, 7}},
           {"gate B", Shape{11, 2}},
           {"up", Shape{11, 7}, DType::BFloat16, false},
           {"up A", Shape{2, 7}},
           {"up B", Shape{11, 2}},
           {"down", Shape{7, 11}, DType::BFloat16, false},
           {"down A", Shape{2, 11}},
           {"down B", Shape{7, 2}}},
          {{"out", wide}},
          {{"rows x inner", 15 * 11}, {"rows x rank", 15 * 2}}};
}

Sample of_packages(Op op) {
  const Shape wide{3, 5, 7};
  switch (op) {
    case Op::AdaptedLinear:
    case Op::AdaptedGated: return of_adapters(op);
    case Op::LigerRmsNorm:
      return {{{"input", wide}, {"weight", Shape{7}}}, {{"out", wide}}, {{"rows", 15}, {"132 x weight", 132 * 7}}};
    case Op::LigerRotary:
      return {{{"queries", Shape{1, 4, 5, 2}},
               {"keys", Shape{1, 3, 5, 2}},
               {"cos", Shape{1, 5, 2}, DType::BFloat16, false},
               {"sin", Shape{1, 5, 2}, DType::BFloat16, false}},
              {{"turned queries", Shape{1, 4, 5, 2}}, {"turned keys", Shape{1, 3, 5, 2}}},
              {}};
    default: return {{{"gate", wide}, {"up", wide}}, {{"out", wide}}, {}};
  }
}

Sample of_one(Op op) {
  if (op == Op::MaxPool2d || op == Op::AvgPool2d)
    return {{{"self", Shape{2, 3, 8, 8}}}, {{"out", Shape{2, 3, 4, 4}}}, {}};
  if (op == Op::Clamp) return {{{"self", kWide}}, {{"out", kWide}}, {{"1", 1}}};
  return one_input(kWide);
}

Sample sample_of(Op op) {
  if (op >= Op::LigerRmsNorm && op <= Op::AdaptedGated) return of_packages(op);
  if (op == Op::Attention) return attention(AttentionKernel::Flash);
  if (op >= Op::LayerNorm && op <= Op::RmsNorm) return norm(op);
  const bool fused = op == Op::FusedLinearCrossEntropy || op == Op::ChunkedLogProb || op == Op::CutCrossEntropy;
  if (fused || (op >= Op::Linear && op <= Op::Conv2d)) return product(op);
  if (op >= Op::Embedding && op <= Op::Sort) return picking(op);
  if ((op >= Op::Add && op <= Op::Addcmul) || op == Op::Cat || op == Op::Stack || op == Op::GridSample) {
    return of_several(op);
  }
  if (op == Op::ParallelCrossEntropy) {
    return {{{"logits", kWide}, {"target", Shape{3, 5}, DType::Int64, false}},
            {{"softmax", kWide, DType::Float32}, {"loss", Shape{3, 5}, DType::Float32}},
            {{"tokens", 15}}};
  }
  if (op == Op::SparseMixer) {
    const Shape column{3, 5, 1};
    return {{{"scores", kWide},
             {"multiplier", column, DType::BFloat16, false},
             {"selected_experts", column, DType::Int64, false},
             {"masked_gates", kWide, DType::BFloat16, false},
             {"mask_for_one", column, DType::BFloat16, false},
             {"mask", kWide, DType::Bool, false}},
            {{"out", column}},
            {}};
  }
  if (op == Op::NllLoss) return loss("target", DType::Int64);
  if (op >= Op::L1Loss && op <= Op::KlDiv) return loss("target", DType::BFloat16);
  if (op >= Op::SumDim && op <= Op::LogSumExp) return one_input(Shape{3, 5});
  if (op >= Op::Slice && op <= Op::Unbind) return one_input(Shape{1, 5, 7});
  return of_one(op);
}

Graph graph_of(Op op, const Sample& sample, std::size_t frozen) {
  Graph graph;
  Node node;
  node.op = op;
  node.attention = sample.kernel;
  node.number = sample.number;
  node.input_count = static_cast<std::uint16_t>(sample.inputs.size());
  node.output_count = static_cast<std::uint16_t>(sample.outputs.size());
  const auto add = [&](const SampleTensor& from, bool gradient) {
    Tensor tensor;
    tensor.shape = from.shape;
    tensor.dtype = from.dtype;
    tensor.requires_grad = gradient;
    tensor.storage = graph.storages.push({storage(from.shape.elements(), from.dtype), kNone, kNone});
    graph.operands.push_back(graph.tensors.push(tensor));
    node.requires_grad |= gradient;
  };
  for (std::size_t i = 0; i < sample.inputs.size(); ++i)
    add(sample.inputs[i], sample.inputs[i].gradient && i != frozen);
  const bool any = node.requires_grad;
  for (const SampleTensor& out : sample.outputs) add(out, any && out.gradient);
  graph.nodes.push(node);
  return graph;
}

// Names a size by the first tensor that has as many elements.
std::string size_text(const Sample& sample, Bytes bytes, DType dtype) {
  const std::int64_t elements = bytes.value() / bytes_per_element(dtype);
  std::string text;
  for (const auto& [what, count] : sample.sizes) {
    if (text.empty() && count == elements) text = what;
  }
  for (const SampleTensor& one : sample.outputs) {
    if (text.empty() && one.shape.elements().value() == elements) text = one.name;
  }
  for (const SampleTensor& one : sample.inputs) {
    if (text.empty() && one.shape.elements().value() == elements) text = one.name;
  }
  if (text.empty()) text = formatted("{}", elements);
  return dtype == sample.inputs[0].dtype ? text : formatted("{} ({})", text, name(dtype));
}

// Which inputs must need a gradient for `saved` to be kept: those without which it is not.
std::string condition_of(Op op, const Sample& sample, const Saved& saved, const CatalogueOptions& options) {
  std::string text;
  for (std::size_t frozen = 0; frozen < sample.inputs.size(); ++frozen) {
    if (!sample.inputs[frozen].gradient) continue;
    const Graph graph = graph_of(op, sample, frozen);
    if (!graph.nodes.front().requires_grad) continue;
    Recipe recipe;
    recipe_of(graph, graph.nodes.front(), recipe, options);
    const bool kept = std::any_of(recipe.saved.begin(), recipe.saved.end(),
                                  [&](const Saved& one) { return one.kind == saved.kind && one.index == saved.index; });
    if (!kept) text += formatted("{}{}", text.empty() ? "" : " and ", sample.inputs[frozen].name);
  }
  return text;
}

std::string kept_text(const Sample& sample, const Recipe& recipe, const Saved& saved) {
  if (saved.kind == Saved::Kind::Input) return sample.inputs[saved.index].name;
  if (saved.kind == Saved::Kind::Output) return sample.outputs[saved.index].name;
  for (const Slot& slot : recipe.slots) {
    if (slot.kind == SlotKind::Extra && slot.index == saved.index) return size_text(sample, slot.bytes, slot.dtype);
  }
  return "?";
}

std::vector<OperatorEntry::Made> temporaries(const Sample& sample, const Recipe& recipe,
                                             const std::vector<RecipeStep>& steps) {
  std::vector<OperatorEntry::Made> made;
  for (const RecipeStep& step : steps) {
    if (step.kind != RecipeStep::Kind::Make) continue;
    const Slot& slot = recipe.slots[step.slot];
    if (slot.kind != SlotKind::Temporary) continue;
    made.push_back({size_text(sample, slot.bytes, slot.dtype), slot.visibility == Visibility::Kernel});
  }
  return made;
}

OperatorEntry describe(Op op, const Sample& sample, const CatalogueOptions& options) {
  OperatorEntry entry;
  entry.name = name(op);
  for (const SampleTensor& input : sample.inputs) entry.inputs.emplace_back(input.name);
  const Graph graph = graph_of(op, sample, sample.inputs.size());
  Recipe recipe;
  recipe_of(graph, graph.nodes.front(), recipe, options);
  for (const Saved& saved : recipe.saved) {
    entry.saved.push_back({saved.name, kept_text(sample, recipe, saved), condition_of(op, sample, saved, options)});
  }
  entry.forward = temporaries(sample, recipe, recipe.forward);
  entry.backward = temporaries(sample, recipe, recipe.backward);
  if (recipe.unknown != nullptr) entry.unknown = recipe.unknown;
  entry.flops = flops_rule(op);
  entry.witness = name(witness_of(op));
  if (since(op) > Version{}) entry.since = since(op).text();
  entry.source = source_of(op);
  return entry;
}

}  // namespace

std::vector<OperatorEntry> describe_catalogue(const CatalogueOptions& options) {
  std::vector<OperatorEntry> entries;
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    if (options.torch < since(op)) continue;
    if (op != Op::Attention) {
      entries.push_back(describe(op, sample_of(op), options));
      continue;
    }
    for (const auto& [kernel, text] : {std::pair{AttentionKernel::Flash, "flash"},
                                       {AttentionKernel::MemoryEfficient, "memory-efficient"},
                                       {AttentionKernel::CuDnn, "cuDNN"}}) {
      entries.push_back(describe(op, attention(kernel), options));
      entries.back().name += formatted(" ({})", text);
    }
  }
  return entries;
}

}  // namespace dsplan
