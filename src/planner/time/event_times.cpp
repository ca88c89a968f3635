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

class Timer {
 public:
  Timer(const Schedule& schedule, const Job& job, const Rates& rates)
      : schedule_(schedule), seq_(job.training.seq), rates_(rates) {}

  [[nodiscard]] double seconds(const Compute& event) const {
    const Touched touched = touched_by(event);
    if (touched.on_host > Bytes(0)) return rates_.host_copy(touched.on_host, touched.pinned);
    if (event.cost == Cost::Product && touched.tensors >= 3) return product(touched);
    if (event.cost == Cost::Attention && touched.tensors > 0) return attention(event, touched);
    return rates_.memory(touched.bytes);
  }
  [[nodiscard]] double seconds(const Communicate& event) const {
    return rates_.collective(event.collective, event.group, event.payload);
  }

 private:
  [[nodiscard]] Touched touched_by(const Compute& event) const {
    Touched found;
    for (const Span span : {event.reads, event.writes}) {
      for (const Access& access : schedule_.range(span)) {
        const Buffer& buffer = schedule_.buffers[access.buffer];
        found.bytes += access.bytes;
        if (buffer.space != Space::Device) {
          found.on_host += access.bytes;
          found.pinned = found.pinned && buffer.space != Space::Pageable;
          continue;
        }
        if (event.cost == Cost::Memory) continue;  // Of most work only the bytes count.
        const double elements =
            static_cast<double>(access.bytes.value()) / static_cast<double>(bytes_per_element(buffer.dtype));
        if (elements > found.elements[0]) found.dtype = buffer.dtype;
        insert(found, elements);
      }
    }
    return found;
  }
  static void insert(Touched& found, double elements) {
    ++found.tensors;
    for (double& one : found.elements) {
      if (elements > one) std::swap(one, elements);
    }
  }

  // Of [m, k], [k, n] and [m, n] the product of two sizes is the third times the square of what they share.
  [[nodiscard]] double product(const Touched& touched) const {
    const double a = touched.elements[0];
    const double b = touched.elements[1];
    const double c = touched.elements[2];
    Product& known = known_[slot(touched)];
    if (known.elements == touched.elements && known.dtype == touched.dtype) return known.seconds;
    known = {touched.elements, touched.dtype, product(a, b, c, touched.dtype)};
    return known.seconds;
  }
  [[nodiscard]] double product(double a, double b, double c, DType dtype) const {
    const auto side = [](double square) { return std::max<std::int64_t>(1, std::llround(std::sqrt(square))); };
    return rates_.product(1, side(a * b / c), side(a * c / b), side(b * c / a), dtype);
  }

  // Causal: half of all pairs.
  [[nodiscard]] double attention(const Compute& event, const Touched& touched) const {
    const double flops = 2 * touched.elements.front() * static_cast<double>(seq_);
    if (event.pass != Pass::Backward) return rates_.attention(flops, touched.dtype);
    return rates_.attention_backward(flops * kProductsOfBackward, touched.dtype);
  }

  // A model has a few products, again and again.
  struct Product {
    std::array<double, 3> elements{};
    DType dtype = DType::Float32;
    double seconds = 0;
  };
  static constexpr std::size_t kProducts = 64;
  [[nodiscard]] static std::size_t slot(const Touched& touched) {
    std::uint64_t mixed = 0;
    for (const double one : touched.elements) mixed = (mixed ^ std::bit_cast<std::uint64_t>(one)) * 0x9e3779b97f4a7c15U;
    return static_cast<std::size_t>(mixed >> 58U);
  }

  const Schedule& schedule_;
  std::int64_t seq_;
  const Rates& rates_;
  mutable std::array<Product, kProducts> known_{};
};

}  // namespace

EventTimes event_times(const Schedule& schedule, const Job& job, const Rates& rates) {
  const Timer timer(schedule, job, rates);
  EventTimes times;
  times.host = rates.launch();
  times.work.resize(schedule.events.size());
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    if (const auto* compute = std::get_if<Compute>(&schedule.events[at])) {
      times.work[at] = static_cast<float>(timer.seconds(*compute));
    } else if (const auto* sent = std::get_if<Communicate>(&schedule.events[at])) {
      times.work[at] = static_cast<float>(timer.seconds(*sent));
    }
  }
  return times;
}

}  // namespace dsplan
