#include "model/reference.h"

#include <string>

namespace dsplan {
namespace {

std::string prefixed(const std::string& path) { return path.empty() ? "ref_model" : "ref_model." + path; }

}  // namespace

ModelSpec with_reference(const ModelSpec& model, std::optional<DType> kept) {
  ModelSpec both = model;
  const auto modules = static_cast<ModuleId>(model.modules.size());
  const auto parameters = static_cast<ParameterId>(model.parameters.size());
  both.reference = modules;
  for (Module module : model.modules) {
    module.path = prefixed(module.path);
    module.parent = module.parent == kNone ? ModuleId(0) : module.parent + modules;
    module.layer = kNone;  // It has no checkpoints.
    both.modules.push_back(std::move(module));
  }
  for (Parameter parameter : model.parameters) {
    parameter.name = prefixed(parameter.name);
    parameter.module += modules;
    if (parameter.tied_to != kNone) parameter.tied_to += parameters;
    parameter.trainable = false;
    if (kept) parameter.dtype = kept;
    both.parameters.push_back(std::move(parameter));
  }
  for (ModelBuffer buffer : model.buffers) {
    buffer.name = prefixed(buffer.name);
    buffer.module += modules;
    buffer.counted = false;
    both.buffers.push_back(std::move(buffer));
  }
  return both;
}

ModelSpec with_value_head(ModelSpec model) {
  const auto head = static_cast<ModuleId>(model.modules.size());
  model.modules.push_back({"v_head", "ValueHead", 0, kNone});
  model.modules.push_back({"v_head.dropout", "Dropout", head, kNone});
  model.modules.push_back({"v_head.summary", "Linear", head, kNone});
  const auto give = [&](const char* name, const Shape& shape) {
    Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.module = head + 2;
    parameter.dtype = DType::Float32;
    model.parameters.push_back(std::move(parameter));
  };
  give("v_head.summary.weight", Shape{1, model.dims.hidden});
  give("v_head.summary.bias", Shape{1});
  return model;
}

ModelSpec without_dropout(ModelSpec model) {
  Dimensions& d = model.dims;
  for (double* one :
       {&d.attention_dropout, &d.residual_dropout, &d.embedding_dropout, &d.adapter_dropout, &d.classifier_dropout}) {
    *one = 0;
  }
  return model;
}

}  // namespace dsplan
