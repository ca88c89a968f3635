#include <array>
#include <nlohmann/json.hpp>

#include "report/receipt.h"
#include "report/write_value.h"

namespace dsplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<Counter, 5> kAll = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved,
                                         Counter::Process};

Json number(const std::optional<Bytes>& bytes) { return bytes ? Json(bytes->value()) : Json(nullptr); }
Json number(const std::optional<Elements>& count) { return count ? Json(count->value()) : Json(nullptr); }
Json number(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(nullptr); }
Json text(const std::optional<std::string>& said) { return said ? Json(*said) : Json(nullptr); }

Json part(const std::optional<Document>& document) {
  return document ? detail::json_of(document->root) : Json(nullptr);
}

Json environment_of(const ReceiptEnvironment& e) {
  return {{"gpu", text(e.gpu)},
          {"capacity_bytes", number(e.capacity)},
          {"driver", text(e.driver)},
          {"cuda", text(e.cuda)},
          {"python", text(e.python)},
          {"torch", text(e.torch)},
          {"transformers", text(e.transformers)},
          {"deepspeed", text(e.deepspeed)},
          {"peft", text(e.peft)},
          {"allocator_conf", e.allocator_conf},
          {"limit_bytes", number(e.limit)},
          {"recorded", e.recorded}};
}

void add_counters(const Counters& counters, const std::string& prefix, std::size_t count, Json& into) {
  for (std::size_t i = 0; i < count; ++i) into[prefix + std::string(name(kAll[i]))] = number(counters[kAll[i]]);
}

Json phases_of(const std::vector<FigurePhase>& phases) {
  Json list = Json::array();
  for (const FigurePhase& phase : phases) {
    Json marks = Json::array();
    for (const FigureMark& mark : phase.marks) {
      Json one = {{"name", mark.name}};
      add_counters(mark.at, "", 5, one);
      marks.push_back(std::move(one));
    }
    Json one = {{"name", phase.name}, {"marks", std::move(marks)}};
    add_counters(phase.peak, "peak_", 4, one);
    if (phase.requested_total) one["requested_total"] = phase.requested_total->value();
    if (phase.allocations) one["allocations"] = *phase.allocations;
    if (phase.host_requested_total) one["host_requested_total"] = phase.host_requested_total->value();
    list.push_back(std::move(one));
  }
  return list;
}

Json process_of(const ProcessBytes& process) {
  Json moments = Json::array();
  for (const ProcessMoment& moment : process.moments) {
    moments.push_back({{"name", moment.name},
                       {"device_used", number(moment.device_used)},
                       {"process", number(moment.process)},
                       {"reserved", moment.reserved.value()}});
  }
  Json rows = Json::array();
  for (const ProcessRow& row : process.rows) {
    rows.push_back({{"what", row.what}, {"bytes", row.bytes.value()}, {"from", row.from}});
  }
  return {{"moments", std::move(moments)}, {"rows", std::move(rows)}, {"unexplained", number(process.unexplained())}};
}

Json communication_of(const std::optional<std::vector<TrafficFigure>>& rows) {
  if (!rows) return nullptr;
  Json list = Json::array();
  for (const TrafficFigure& row : *rows) {
    list.push_back({{"collective", row.collective},
                    {"group", row.group},
                    {"phase", row.phase},
                    {"dtype", row.dtype},
                    {"kind", row.kind},
                    {"calls", number(row.calls)},
                    {"payload_bytes", number(row.payload)},
                    {"wire_bytes", number(row.wire)}});
  }
  return list;
}

// A part of which nothing was measured is null.
Json or_null(Json part) {
  for (const Json& value : part) {
    if (!value.is_null()) return part;
  }
  return nullptr;
}

Json rank_of(const RankFigures& rank) {
  Json persistent = Json::object();
  add_counters(rank.persistent, "", 2, persistent);
  Json peak = Json::object();
  add_counters(rank.peak, "", 5, peak);
  peak["phase"] = rank.peak_phase.empty() ? Json(nullptr) : Json(rank.peak_phase);
  Json host = {{"pinned", number(rank.host.pinned)},
               {"pageable", number(rank.host.pageable)},
               {"peak", number(rank.host.peak)},
               {"per_node", number(rank.host.per_node)}};
  const auto file = [&](const char* key, const std::optional<Bytes>& bytes) {
    if (rank.host.nvme.value_or(Bytes(0)) > Bytes(0)) host[key] = number(bytes);
  };
  file("nvme", rank.host.nvme);
  file("nvme_read", rank.host.nvme_read);
  file("nvme_written", rank.host.nvme_written);
  Json absent = Json::array();
  for (const Absence& one : rank.absent) absent.push_back({{"what", one.what}, {"why", one.why}});
  return {{"rank", rank.rank},
          {"parameters", {{"total", number(rank.parameters_total)}, {"trainable", number(rank.parameters_trainable)}}},
          {"memory",
           {{"persistent", or_null(std::move(persistent))},
            {"peak", or_null(std::move(peak))},
            {"phases", phases_of(rank.phases)},
            {"host", or_null(std::move(host))}}},
          {"communication", communication_of(rank.communication)},
          {"snapshot", rank.snapshot.empty() ? Json(nullptr) : Json(rank.snapshot)},
          {"not_measured", std::move(absent)}};
}

}  // namespace

std::string receipt_json(const Receipt& receipt) {
  Json ranks = Json::array();
  for (const RankFigures& rank : receipt.ranks) ranks.push_back(rank_of(rank));
  Json samples = Json::array();
  for (const ReceiptSample& sample : receipt.samples) {
    samples.push_back({{"phase", sample.phase}, {"rank", sample.rank}, {"step_ns", number(sample.step_ns)}});
  }
  const ReceiptInputs& inputs = receipt.inputs;
  Json value = {{"schema", "dsplan.receipt/1"},
                {"source", receipt.source},
                {"name", receipt.name},
                {"level", std::string(name(receipt.level))},
                {"device", std::string(name(receipt.device))},
                {"ranks_are", std::string(name(receipt.ranks_are))},
                {"complete", receipt.complete},
                {"outcome", std::string(name(receipt.outcome))},
                {"message", text(receipt.message)},
                {"environment", environment_of(receipt.environment)},
                {"inputs",
                 {{"model", part(inputs.model)},
                  {"deepspeed", part(inputs.deepspeed)},
                  {"training", part(inputs.training)},
                  {"training_arguments", part(inputs.training_arguments)},
                  {"options", inputs.options},
                  {"fingerprint", text(inputs.fingerprint)}}},
                {"world_size", receipt.world},
                {"ranks", std::move(ranks)},
                {"samples", std::move(samples)}};
  if (receipt.process) value["process"] = process_of(*receipt.process);
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsplan
