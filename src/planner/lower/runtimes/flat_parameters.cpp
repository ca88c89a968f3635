#include "planner/lower/runtimes/flat_parameters.h"

#include <utility>

namespace dsplan {
namespace {

constexpr Source kFlattens = "zero/stage_1_and_2.py, flatten_dense_tensors_aligned";
constexpr Source kConstructs = "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__";

}  // namespace

FlatParameters::FlatParameters(Emitter& emitter, const FlatLayout& layout, DType dtype, std::size_t parameters)
    : eager_(emitter), layout_(layout), dtype_(dtype), whole_(parameters) {}

void FlatParameters::take(const std::vector<BufferId>& whole) {
  for (std::size_t id = 0; id < whole.size(); ++id) {
    if (whole[id] != kNoBuffer) whole_[id] = Variable(eager_.emitter(), whole[id]);
  }
}

ParameterPlace FlatParameters::place(ParameterId parameter) const {
  if (const BufferId whole = whole_[at(parameter)].id(); whole != kNoBuffer) {
    return {whole, Bytes(0), eager_.emitter().size(whole)};
  }
  const std::size_t i = layout_.index_of(parameter);
  return {flat_.id(), bytes(layout_.offset[i]), bytes(layout_.order[i].elements)};
}

Variable FlatParameters::padding(Space space) {
  const std::int64_t elements = layout_.padded - layout_.elements;
  if (elements == 0) return {};
  return eager_.zeros(bytes(elements), dtype_, {Role::Temporaries, "padding of flat parameters"}, "zero padding", kNone,
                      space);
}

void FlatParameters::flatten(const std::vector<std::string>& printed) {
  const Variable zeros = padding(Space::Device);
  flat_ = eager_.empty(bytes(layout_.padded), dtype_, {Role::Parameters, "flat parameters", kFlattens});
  Work join = eager_.work();
  for (const NamedParameter& p : layout_.order) join.read(whole_[at(p.id)]);
  if (zeros) join.read(zeros);
  join.write(flat_).run(Body::Copy, "flatten parameters");
  for (const std::string& text : printed) eager_.emitter().print(text);
  for (const NamedParameter& p : layout_.order) whole_[at(p.id)].reset();
}

void FlatParameters::flatten_on_host() {
  eager_.emitter().print("Before moving param group 0 to CPU");
  Variables away;
  Variables stand_ins;
  for (const NamedParameter& p : layout_.order) {
    away.append(eager_.clone(whole_[at(p.id)], {Role::Parameters, "parameter on the host"}, "copy to host", p.id,
                             Space::Pageable));
    whole_[at(p.id)].reset();
    stand_ins.append(eager_.scratch(Bytes(4), DType::Float32,
                                    {Role::Temporaries, "stand-in of a parameter on the host", kConstructs}));
    eager_.zero(stand_ins.ids().back(), "stand-in");
  }
  eager_.emitter().empty_cache();
  eager_.emitter().print("After moving param group 0 to CPU");
  Variable zeros = padding(Space::Pageable);
  Variable joined = eager_.empty(bytes(layout_.padded), dtype_, {Role::Parameters, "flat parameters on the host"},
                                 kNone, Space::Pageable);
  Work join = eager_.work();
  join.read(away);
  if (zeros) join.read(zeros);
  join.write(joined).run(Body::Copy, "flatten parameters");
  zeros.reset();
  away.reset();
  flat_ = eager_.clone(joined, {Role::Parameters, "flat parameters", kFlattens}, "move to device");
  joined.reset();
  eager_.emitter().print("After flattening and moving param group 0 to GPU");
  eager_.emitter().print("After Flattening and after emptying param group 0 cache");
}

void FlatParameters::all_gather() {
  if (layout_.ranks > 1) eager_.all_gather(flat_, partition(), layout_.ranks);
}

}  // namespace dsplan
