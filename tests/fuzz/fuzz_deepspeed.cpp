// read_deepspeed and resolve: a DeepSpeed JSON is refused, or becomes a job whose batch triple holds.
#include "io/deepspeed.h"
#include "io/text.h"
#include "model/families.h"
#include "planner/resolve/resolve.h"
#include "property.h"

using namespace dsplan;

namespace {

const ModelSpec& tiny() {
  static const ModelSpec model =
      build_model(parse_json("config.json", R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
                                    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
                                    "vocab_size": 128, "max_position_embeddings": 64})"),
                  "tiny");
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Request request;
  request.gpus = Setting<std::int64_t>(4, Place{"--gpus", 0, 0, {}});
  Job job;
  if (!fuzz::accepts([&] {
        const DeepSpeedInput input = read_deepspeed(parse_hjson("ds.json", text));
        job = resolve(tiny(), request, &input, nullptr, nullptr);
      })) {
    return 0;
  }
  fuzz::require(job.parallelism.dp == 4, "four ranks");
  fuzz::require(job.training.micro_batch >= 1 && job.training.grad_accum >= 1, "a batch");
  fuzz::require(job.training.zero.stage >= 0 && job.training.zero.stage <= 3, "a stage that exists");
  fuzz::require(job.training.zero.reduce_bucket_size >= Elements(0), "sizes do not wrap");
  return 0;
}
