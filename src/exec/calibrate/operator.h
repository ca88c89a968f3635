// One operator with memory of its own: what it is given is drawn at random, what it makes is what the executor's rules
// say. Private to exec/calibrate.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "exec/calibrate/bench.h"
#include "exec/operators/operators.h"

namespace dsplan::exec {

class Operator {
 public:
  // Inputs and output are dense and of one dtype. `tweak` says what else the node says.
  Operator(Device& device, Op op, DType dtype, const std::vector<Shape>& inputs, const Shape& output,
           const std::function<void(Node&)>& tweak = {});

  void forward();
  // After a forward. The gradient of the output is drawn at random.
  void backward();
  // Of all inputs and of the output: what the operator has to read and to write.
  [[nodiscard]] Bytes moved() const;

 private:
  struct Tensor {
    Described what;
    std::shared_ptr<DeviceBlock> memory;
  };
  struct Named {
    Made what;
    Tensor tensor;
  };

  [[nodiscard]] TensorId add_tensor(const Shape& shape, DType dtype, NodeId producer);
  [[nodiscard]] Tensor make(const Described& what);
  [[nodiscard]] Tensor drawn(const Described& what);
  [[nodiscard]] std::vector<Named> make_all(const std::vector<Made>& made);
  [[nodiscard]] const Tensor& kept(const Kept& what) const;
  void launch(Body body, const std::vector<dsplan_tensor>& in, const std::vector<Named>& made);
  [[nodiscard]] static dsplan_tensor raw(const Tensor& tensor);

  Device& device_;
  Graph graph_;
  Attributes attributes_;
  std::vector<Tensor> inputs_;
  std::vector<Named> made_;
  std::vector<Tensor> gradients_;  // Of the outputs, then what was saved; made with the first backward.
  std::vector<Named> made_backward_;
  Tensor workspace_;
};

}  // namespace dsplan::exec
