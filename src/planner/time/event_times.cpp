#include "planner/time/event_times.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

namespace dsplan {
namespace {

// FlashAttention's backward computes the scores once more: five products to forward's two.
constexpr double kProductsOfBackward = 2.5;

// What one piece of work touches.
struct Touched {
  Bytes bytes;
  Bytes on_host;
  bool pinned = true;
  std::array<double, 3> elements{};  // Of the largest tensors on the device, largest first.
  std::size_t tensors = 0;           // On the device.
  DType dtype = DType::Float32;      // Of the largest.
};

void insert(Touched& found, double elements) {
  ++found.tensors;
  for (double& one : found.elements) {
    if (elements > one) std::swap(one, elements);
  }
}

Touched touched_by(const ScheduleView& schedule, const Compute& event) {
  Touched found;
  for (const Span span : {event.reads, event.writes}) {
    for (const Access& access : schedule.range(span)) {
      const Buffer& buffer = schedule.buffer(access.buffer);
      found.bytes += access.bytes;
      if (buffer.space != Space::Device) {
        found.on_host += access.bytes;
        found.pinned = found.pinned && buffer.space != Space::Pageable;
        continue;
      }
      const double elements =
          static_cast<double>(access.bytes.value()) / static_cast<double>(bytes_per_element(buffer.dtype));
      if (elements > found.elements[0]) found.dtype = buffer.dtype;
      insert(found, elements);
    }
  }
  return found;
}

std::size_t slot(const std::array<double, 3>& elements) {
  std::uint64_t mixed = 0;
  for (const double one : elements) mixed = (mixed ^ std::bit_cast<std::uint64_t>(one)) * 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>(mixed >> 58U);
}

// Causal: half of all pairs.
double attention(const Rates& rates, const Compute& event, const Touched& touched, std::int64_t seq) {
  const double flops = 2 * touched.elements.front() * static_cast<double>(seq);
  if (event.pass != Pass::Backward) return rates.attention(flops, touched.dtype);
  return rates.attention_backward(flops * kProductsOfBackward, touched.dtype);
}

}  // namespace

EventTimer::EventTimer(const Schedule& schedule, const Job& job, const Rates& rates)
    : schedule_(schedule), seq_(job.training.seq), rates_(rates) {
  times_.host = rates.launch();
}

double EventTimer::seconds(const ScheduleView& view, const Compute& event) {
  const Touched touched = touched_by(view, event);
  if (touched.on_host > Bytes(0)) return rates_.host_copy(touched.on_host, touched.pinned);
  if (event.cost == Cost::Product && touched.tensors >= 3) return product(touched.elements, touched.dtype);
  if (event.cost == Cost::Attention && touched.tensors > 0) return attention(rates_, event, touched, seq_);
  return rates_.memory(touched.bytes);
}

// Of [m, k], [k, n] and [m, n] the product of two sizes is the third times the square of what they share.
double EventTimer::product(const std::array<double, 3>& elements, DType dtype) {
  Product& known = known_[slot(elements)];
  if (known.elements == elements && known.dtype == dtype) return known.seconds;
  const auto side = [](double square) { return std::max<std::int64_t>(1, std::llround(std::sqrt(square))); };
  const auto [a, b, c] = elements;
  known = {elements, dtype, rates_.product(1, side(a * b / c), side(a * c / b), side(b * c / a), dtype)};
  return known.seconds;
}

void EventTimer::read(std::size_t begin, std::size_t end) {
  const ScheduleView view(schedule_);
  times_.work.resize(end);
  for (std::size_t at = begin; at < end; ++at) {
    if (const auto* compute = std::get_if<Compute>(&view.event(at))) {
      times_.work[at] = static_cast<float>(seconds(view, *compute));
    } else if (const auto* sent = std::get_if<Communicate>(&view.event(at))) {
      times_.work[at] = static_cast<float>(rates_.collective(sent->collective, sent->group, sent->payload));
    }
  }
}

EventTimes event_times(const Schedule& schedule, const Job& job, const Rates& rates) {
  EventTimer timer(schedule, job, rates);
  timer.read(0, schedule.events.size());
  return std::move(timer.times());
}

}  // namespace dsplan
