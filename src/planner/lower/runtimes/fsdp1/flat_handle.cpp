#include "planner/lower/runtimes/fsdp1/flat_handle.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/fsdp/fsdp_facts.h"

namespace dsplan {
namespace {

constexpr What kFlatParameter{Role::Parameters, "flat parameter", "fsdp/_flat_param.py, flatten_tensors"};
constexpr What kFlatPadding{Role::Parameters, "padding of a flat parameter",
                            "fsdp/_flat_param.py, _construct_padding_tensor"};
constexpr What kFlatShard{Role::Parameters, "shard of a flat parameter", "fsdp/_flat_param.py, _get_shard"};
constexpr What kWideShard{Role::Parameters, "shard of a flat parameter", "accelerate: accelerator.py, prepare_model"};
constexpr What kHostShard{Role::Parameters, "shard of a flat parameter on the host",
                          "fsdp/_init_utils.py, _init_param_handle_from_params"};
constexpr What kPinnedShard{Role::Parameters, "shard of a flat parameter on the host",
                            "fsdp/_flat_param.py, init_flat_param_attributes"};
constexpr What kMovedShard{Role::RuntimeBuffers, "shard on its way to the device",
                           "fsdp/_flat_param.py, _use_low_precision_shard"};
constexpr What kCastFlat{Role::RuntimeBuffers, "shard in the dtype that is gathered",
                         "fsdp/_flat_param.py, _use_low_precision_shard"};
constexpr What kGatheredFlat{Role::RuntimeBuffers, "gathered flat parameter",
                             "fsdp/_flat_param.py, _alloc_padded_unsharded_flat_param"};
constexpr What kFlatAttribute{Role::Temporaries, "storage that is freed at once",
                              "fsdp/_flat_param.py, init_flat_param_attributes"};

std::vector<BufferId> ids_of(const std::vector<Variable>& pieces) {
  std::vector<BufferId> ids;
  for (const Variable& piece : pieces) {
    if (piece) ids.push_back(piece.id());
  }
  return ids;
}

void make_padding(Eager& eager, const FlatUnit& unit, DType type, std::vector<Variable>& pieces) {
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    if (unit.pieces[at].id != kNone) continue;
    const Variable ones = eager.zeros(storage(unit.pieces[at].elements, type), type, kFlatPadding, "ones");
    pieces[at] = eager.clone(ones, kFlatPadding, "padding");
  }
}

// _get_shard: a clone, and F.pad of it where it is short.
Variable cut(Eager& eager, const FlatUnit& unit, const Variable& flat, std::int64_t rank) {
  const DType type = eager.emitter().dtype(flat.id());
  const std::int64_t begin = std::min(unit.shard.value() * rank, unit.total.value());
  const Elements real(std::min(unit.shard.value(), unit.total.value() - begin));
  const Part mine(flat.id(), storage(Elements(begin), type), storage(real, type));
  Variable chunk;
  if (real > Elements(0)) chunk = eager.clone(mine, kFlatShard, "cut flat parameter");
  if (real == unit.shard) return chunk;
  Variable shard = eager.empty(storage(unit.shard, type), type, kFlatShard);
  Work pad = eager.work();
  if (chunk) pad.read(chunk);
  pad.write(shard).run(chunk ? Body::Copy : Body::Clear, "pad shard");
  return shard;
}

// Views that show another storage than the shard's are copied into it (_writeback_orig_params).
void write_back(Eager& eager, const std::vector<FlatSlice>& slices, const Variable& shard, const Variable& stale) {
  const auto part = [&](const Variable& of, const FlatSlice& slice) {
    const DType type = eager.emitter().dtype(of.id());
    return Part(of.id(), storage(slice.from, type), storage(slice.elements, type));
  };
  for (const FlatSlice& slice : slices) eager.copy(part(shard, slice), part(stale, slice), "write views back");
}

bool is_embedding(const ModelSpec& model, ParameterId id) {
  const ModuleId module = model.parameter_at(id).module;
  return model.module_at(module).type == "Embedding";
}

void promise_updates(const FlatHandle& handle, Emitter& emitter) {
  for (const StepParameter& p : handle.step_parameters()) {
    emitter.promise_update(p.parameter.buffer, p.parameter.offset, p.parameter.bytes);
  }
}

}  // namespace

FlatHandle::FlatHandle(const FlatUnit& unit, const Job& job, const ModelSpec& model, std::int64_t rank,
                       Emitter& emitter)
    : share(unit, job, rank),
      gradient(share, model, emitter),
      model_(model),
      mixes_(unit.gathered != share.kept),
      eager_(emitter) {}

// FlatParamHandle.__init__ and shard(). Parameters and buffers that are on the host are moved first, breadth first
// (_init_utils.py, _move_module_to_device).
void FlatHandle::flatten(ModelLoading& loading, const std::function<void(ModuleId)>& move_buffers, const Sync& sync) {
  const DType kept = share.unit.made;
  std::vector<Variable> pieces(share.unit.pieces.size());
  for (const ModuleId module : share.unit.breadth) {
    for (std::size_t at = 0; at < pieces.size(); ++at) {
      const ParameterId id = share.unit.pieces[at].id;
      if (id == kNone || model_.parameter_at(id).module != module) continue;
      pieces[at] =
          loading.load({id, share.unit.pieces[at].elements.value(), true, kept}, {Role::Parameters, "whole parameter"});
      pieces[at].mark_scratch();  // What other ranks keep is theirs.
    }
  }
  if (move_buffers) {
    for (const ModuleId module : share.unit.breadth) move_buffers(module);
  }
  if (sync) sync(share.unit, ids_of(pieces));
  make_padding(eager_, share.unit, kept, pieces);
  Variable flat = eager_.empty(storage(share.unit.total, kept), kept, kFlatParameter);
  eager_.work().read(std::span<const Variable>(pieces)).write(flat).run(Body::Copy, "flatten parameters");
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    if (share.unit.pieces[at].id == kNone) pieces[at].reset(Reason::PythonFrame);
  }
  if (share.whole) {
    shard_ = std::move(flat);
  } else {
    flat.mark_scratch();
    shard_ = cut(eager_, share.unit, flat, share.rank);
    flat.reset(Reason::PythonFrame);
  }
  if (share.training.fsdp.cpu_offload) {
    if (share.whole && !share.training.fsdp.use_orig_params) shown_ = shard_.share();
    shard_ = eager_.clone(shard_, kHostShard, "copy to host", kNone, Space::Pageable);
  }
  let_go(pieces, Reason::PythonFrame);
}

void FlatHandle::widen() {
  if (share.kept != share.unit.made) {
    const Space space = eager_.emitter().space(shard_.id());
    Variable wide = eager_.empty(storage(share.unit.shard, share.kept), share.kept, kWideShard, kNone, space);
    eager_.copy(wide, shard_, "cast shard");
    if (share.training.fsdp.use_orig_params && space == Space::Device) {
      tell_uses(eager_.emitter(), shard_.id(), false);
      stale_ = std::move(shard_);
      wide.mark_scratch();  // It is written back before anyone reads it.
    } else if (share.whole && space == Space::Device) {
      shown_ = std::move(shard_);
    }
    shard_ = std::move(wide);
  }
  if (!share.training.fsdp.cpu_offload) promise_updates(*this, eager_.emitter());
}

void FlatHandle::init_attributes() {
  const auto once = [&](Elements elements, DType type) {
    const Variable made = eager_.scratch(storage(elements, type), type, kFlatAttribute);
    eager_.work().write(made).run(Body::Nothing, "free storage");
  };
  if (share.training.fsdp.cpu_offload) {
    shard_ = eager_.clone(shard_, kPinnedShard, "pin memory", kNone, Space::Pinned);
    gradient.make_on_host();
    promise_updates(*this, eager_.emitter());
  }
  if (mixes_) once(share.unit.shard, share.unit.gathered);
  if (share.whole) return;
  once(share.unit.shard * share.ranks, share.unit.gathered);
  if (mixes_) once(share.unit.shard * share.ranks, share.kept);
}

void FlatHandle::use_sharded_views() {
  stale_.reset(Reason::ModuleExit);
  moved_.reset(Reason::ModuleExit);
}

// A shard on the host is moved also where the unit is gathered already, and let go of.
bool FlatHandle::pre_unshard() {
  const bool offloads = share.training.fsdp.cpu_offload;
  const bool writes = stale_ && !std::exchange(written_back_, true);
  if (writes) write_back(eager_, slices_of(share.unit, share.rank), shard_, stale_);
  if (offloads && mixes_) {
    cast_ = eager_.empty(storage(share.unit.shard, share.unit.gathered), share.unit.gathered, kCastFlat);
    const Variable there = eager_.clone(shard_, kMovedShard, "copy to device");
    eager_.copy(cast_, there, "cast shard");
  } else if (offloads) {
    cast_ = eager_.clone(shard_, kMovedShard, "copy to device");
    if (share.training.fsdp.use_orig_params) moved_ = cast_.share();
  } else if (!whole_ && mixes_) {
    cast_ = eager_.cast(shard_, share.unit.gathered, kCastFlat, "cast shard");
  }
  if (whole_ && cast_) cast_.mark_scratch();
  return writes || static_cast<bool>(cast_);
}

void FlatHandle::unshard() {
  if (whole_) return cast_.reset(Reason::PythonFrame);
  if (share.whole) {  // What was cast or moved is the whole of it, and else the shard itself.
    whole_ = cast_ ? std::move(cast_) : shard_.share();
    shown_.reset(Reason::ModuleExit);
    return;
  }
  whole_ =
      eager_.empty(storage(share.unit.shard * share.ranks, share.unit.gathered), share.unit.gathered, kGatheredFlat);
  eager_.all_gather(whole_, cast_ ? Part(cast_) : Part(shard_), share.ranks, share.group);
  cast_.reset(Reason::PythonFrame);
}

void FlatHandle::free_whole(bool told) {
  if (whole_ && !told && !share.whole) tell_uses(eager_.emitter(), whole_.id(), false);
  whole_.reset(Reason::ModuleExit);
}

ParameterPlace FlatHandle::place(std::size_t piece) const {
  const FlatPiece& of = share.unit.pieces[piece];
  DSPLAN_CHECK(whole_, "a parameter is used while its unit is sharded");
  return {whole_.id(), storage(of.from, share.unit.gathered), storage(of.elements, share.unit.gathered)};
}

std::vector<StepParameter> FlatHandle::step_parameters() const {
  if (!share.unit.trains) return {};
  const Variable& reduced = gradient.for_step();
  const auto part = [&](const Variable& of, Elements from, Elements elements) {
    return of ? Part(of.id(), storage(from, share.kept), storage(elements, share.kept)) : Part();
  };
  std::vector<StepParameter> made;
  const auto add = [&](ParameterId id, Elements from, Elements elements) {
    const bool views = share.whole && share.training.fsdp.use_orig_params;
    const Shape shape = views ? model_.parameter_at(id).shape : Shape{elements.value()};
    StepParameter one{id, part(shard_, from, elements), part(reduced, from, elements), shape, share.kept};
    one.embedding = share.training.fsdp.use_orig_params && is_embedding(model_, id);
    made.push_back(one);
  };
  if (share.training.fsdp.use_orig_params) {
    for (const FlatSlice& slice : slices_of(share.unit, share.rank)) {
      if (slice.trained) add(slice.id, slice.from, slice.elements);
    }
    return made;
  }
  const auto first = std::find_if(share.unit.pieces.begin(), share.unit.pieces.end(),
                                  [](const FlatPiece& piece) { return piece.id != kNone; });
  add(first->id, Elements(0), share.unit.shard);
  return made;
}

}  // namespace dsplan
