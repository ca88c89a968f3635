#include "sim/above_inputs.h"

#include <algorithm>

namespace dsplan {

void AboveInputsMeter::on(std::size_t, const Allocate& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space != Space::Device) return;
  now_ += buffer.size;
  if (peak_ != nullptr) *peak_ = std::max(*peak_, now_ - inputs_);
}

void AboveInputsMeter::on(std::size_t, const Release& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space == Space::Device) now_ -= buffer.size;
}

void AboveInputsMeter::on(std::size_t, const Mark& event) {
  switch (event.moment) {
    case Moment::ForwardBegins:
      inputs_ = now_;
      peak_ = &figures_.forward_peak;
      break;
    case Moment::ForwardEnds:
      figures_.after_forward = now_ - inputs_;
      peak_ = nullptr;
      break;
    case Moment::BackwardBegins:
      figures_.backward_peak = now_ - inputs_;
      peak_ = &*figures_.backward_peak;
      break;
    case Moment::BackwardEnds:
      figures_.after_backward = now_ - inputs_;
      peak_ = nullptr;
      break;
    default: break;
  }
}

}  // namespace dsplan
