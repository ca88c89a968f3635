// Resolving what the training loop does: checkpointing, the optimizer and its gradients.
#include "resolving.h"

using namespace dsplan;
using namespace resolving;

TEST_CASE("resolve: what the Trainer hands to the optimizer") {
  Given given{"", trainer("max_grad_norm: 0.5\nweight_decay: 0.1")};
  const Training now = run(given).training;
  CHECK(now.optimizer.implementation == Implementation::Fused);
  CHECK(now.optimizer.weight_decay == 0.1);
  CHECK(now.param_groups == ParamGroups::Decay);
  CHECK(now.gradient_clipping == 0.5);
  CHECK(now.zero_grad_to_none);
  set(given.request.torch_version, std::string("2.7"), "--torch-version");
  CHECK(run(given).training.optimizer.implementation == Implementation::Foreach);
  set(given.request.torch_version, std::string("2.8"), "--torch-version");
  set(given.request.transformers_version, std::string("4.57"), "--transformers-version");
  CHECK(run(given).training.optimizer.implementation == Implementation::Foreach);
  CHECK(run(Given{}).training.param_groups == ParamGroups::Single);
}

TEST_CASE("resolve: zero_grad by the training file's key or --set") {
  Given given;
  given.request.set = {{"zero_grad_set_to_none=false"}, option("--set")};
  CHECK(!run(given).training.zero_grad_to_none);
  given.request.set = {{"zero_grad_set_to_none=no"}, option("--set")};
  says(given, "--set: error: \"zero_grad_set_to_none=no\" is neither true nor false");
  given.request.set = {{"lr=1"}, option("--set")};
  says(given,
       "--set: error: there is no setting \"lr\"; it takes model_init, zero_grad_set_to_none, use_cache, "
       "labels_are_ids, cast_model, and");
}

TEST_CASE("resolve: checkpointing words become groups") {
  const auto groups = [](const std::string& text, std::int64_t layers) {
    std::string all;
    Request request;
    request.checkpoint = {text, option("--checkpoint")};
    ModelSpec model;
    model.dims.layers = layers;
    for (const CheckpointGroup& group : resolve_checkpointing(request, model, CheckpointKind::NonReentrant).groups) {
      all += dsplan::formatted("{}-{} ", group.first, group.last);
    }
    return all;
  };
  CHECK(groups("none", 4).empty());
  CHECK(groups("full", 4) == "0-0 1-1 2-2 3-3 ");
  CHECK(groups("every:3", 7) == "0-2 3-5 6-6 ");
  CHECK(groups("every:100", 3) == "0-2 ");
  CHECK(groups("segments:2", 7) == "0-2 ");
  CHECK(groups("segments:3", 7) == "0-1 2-3 ");
  CHECK(groups("segments:1", 7).empty());
  CHECK(groups("nth:2", 5) == "0-0 2-2 4-4 ");
  CHECK(groups("nth:9223372036854775807", 5) == "0-0 ");
  CHECK(groups("full", 0).empty());
  for (const char* bad : {"every:0", "every:", "every:x", "segments:8", "often", "nth:-1"}) {
    INFO(std::string(bad));
    CHECK_THROWS_AS((void)groups(bad, 7), Refusal);
  }
  Given listed;
  set(listed.request.checkpoint, std::string("groups.json"), "--checkpoint");
  listed.request.checkpoint_groups = {
      std::vector<CheckpointEntry>{
          {0, 2, true, {}, {}}, {3, 3, false, {}, {}}, {4, 5, true, CheckpointKind::Reentrant, {}}},
      option("--checkpoint")};
  const Checkpointing result = run(listed).training.checkpoint;
  CHECK(result.groups == std::vector<CheckpointGroup>{{0, 2}, {4, 5, CheckpointKind::Reentrant}});
  listed.request.checkpoint_groups.value->back().last = 6;
  says(listed, "layer 6 does not exist: the model has layers 0 to 5");
  CHECK(input(run({"", trainer("gradient_checkpointing: true")}), "checkpointing").value == "full");
}

TEST_CASE("resolve: which form of checkpointing") {
  const auto kind = [](Given given) {
    const Job job = run(given);
    REQUIRE(!job.training.checkpoint.groups.empty());
    return job.training.checkpoint.groups.front().kind;
  };
  Given given;
  set(given.request.checkpoint, std::string("full"), "--checkpoint");
  CHECK(kind(given) == CheckpointKind::NonReentrant);
  set(given.request.transformers_version, std::string("4.57.0"), "--transformers-version");
  CHECK(kind(given) == CheckpointKind::Reentrant);
  set(given.request.checkpoint_impl, std::string("non_reentrant"), "--checkpoint-impl");
  CHECK(kind(given) == CheckpointKind::NonReentrant);
  set(given.request.checkpoint_impl, std::string("both"), "--checkpoint-impl");
  says(given, "no implementation \"both\"");
  Given idle;
  set(idle.request.checkpoint_impl, std::string("reentrant"), "--checkpoint-impl");
  says(idle, "nothing is checkpointed");
  CHECK(kind({"", trainer("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}")}) ==
        CheckpointKind::Reentrant);
  CHECK_FALSE(run({"", trainer("gradient_checkpointing: true\n"
                               "gradient_checkpointing_kwargs: {preserve_rng_state: false}")})
                  .training.checkpoint.groups.front()
                  .preserve_rng_state);
}

TEST_CASE("resolve: routing of experts") {
  Given given;
  set(given.request.routing, std::string("balanced"), "--routing");
  says(given, "--routing: error: routing \"balanced\", but small has no experts");
  given.model.dims.experts = 8;
  given.model.dims.experts_per_token = 2;
  for (const char* rule : {"balanced", "worst", "capacity:1", "capacity:1.25", "capacity:4"}) {
    set(given.request.routing, std::string(rule), "--routing");
    const Job job = run(given);
    CHECK(input(job, "routing").value == rule);
    CHECK(find_notice(job, "routing moves no byte") != nullptr);
  }
  const auto refused = [&](const char* rule, const char* reason) {
    set(given.request.routing, std::string(rule), "--routing");
    says(given, reason);
  };
  refused("capacity:0.5", "routing \"capacity:0.5\" drops tokens, and transformers' mixtures drop none");
  refused("capacity:", "routing \"capacity:\" needs a number above 0 behind capacity:");
  refused("capacity:1.5x", "needs a number above 0");
  refused("capacity:nan", "needs a number above 0");
  refused("capacity:4.5", "more tokens than there are: 2 of 8 experts for each make at most capacity:4");
  refused("balaced", "routing \"balaced\" is not known; did you mean \"balanced\"?");
}

TEST_CASE("resolve: experts run as transformers is asked to") {
  Given given;
  set(given.request.experts, std::string("eager"), "--experts");
  says(given, "--experts: error: experts \"eager\", but small has no experts");
  given.model.dims.experts = 4;
  given.model.dims.experts_per_token = 2;
  CHECK(input(run(given), "experts").value == "eager");
  CHECK(run(given).training.experts == ExpertsImplementation::Loop);
  CHECK(input(run(given), "routing").value == "balanced");
  set(given.request.routing, std::string("capacity:1.25"), "--routing");
  CHECK(name(run(given).training.routing) == "capacity:1.25");
  CHECK(find_notice(run(given), "routing moves no byte") == nullptr);
  set(given.request.experts, std::string("batched_mm"), "--experts");
  CHECK(find_notice(run(given), "each token has a copy of its experts' weights") != nullptr);
  CHECK(name(run(given).training.routing) == "balanced");
  set(given.request.experts, std::string("batch_mm"), "--experts");
  says(given, "experts \"batch_mm\" is not known; did you mean \"batched_mm\"?");
  set(given.request.experts, std::string("sonicmoe"), "--experts");
  says(given, "experts \"sonicmoe\", of a kernel of its own is not modelled yet");
}

TEST_CASE("resolve: tokens of experts by rule") {
  const auto tokens = [](Routing::Kind kind, double factor, const Choices& choices) {
    return tokens_of_experts({kind, factor, {}}, 0, choices);
  };
  using Kind = Routing::Kind;
  using Tokens = std::vector<std::int64_t>;
  CHECK(tokens(Kind::Balanced, 1, {7, 2, 4}) == Tokens{4, 4, 3, 3});
  CHECK(tokens(Kind::Worst, 1, {7, 2, 4}) == Tokens{7, 7, 0, 0});
  CHECK(tokens(Kind::Capacity, 1, {7, 2, 4}) == Tokens{4, 4, 4, 2});
  CHECK(tokens(Kind::Capacity, 1.5, {7, 2, 4}) == Tokens{6, 6, 2, 0});
  CHECK(tokens(Kind::Capacity, 2, {7, 2, 4}) == Tokens{7, 7, 0, 0});
  const Routing counted{Kind::Counts, 1, {{3, 1}, {2, 2}}};
  CHECK(tokens_of_experts(counted, 1, {2, 2, 2}) == Tokens{2, 2});
  CHECK(name(counted) == "counts:3,1/2,2");
}

TEST_CASE("resolve: tokens of experts from a file") {
  Given given;
  given.model.dims.experts = 4;
  given.model.dims.experts_per_token = 2;
  for (const char* path : {"layers.0.experts", "layers.1.experts"})
    given.model.modules.push_back({.path = path, .type = "Experts"});
  set(given.request.experts, std::string("eager"), "--experts");
  set(given.request.routing, std::string("counts.json"), "--routing");
  set(given.request.micro_batch, std::int64_t{1}, "--micro-batch");
  set(given.request.seq, std::int64_t{8}, "--seq");
  const Place place{"counts.json", 3, 5, "[8, 8, 0, 0]"};
  const auto rows = [&](const std::vector<std::vector<std::int64_t>>& counts) {
    std::vector<TokenCounts> listed;
    for (const auto& row : counts) listed.push_back({row, place});
    given.request.token_counts = {listed, option("--routing")};
  };
  rows({{8, 8, 0, 0}});
  CHECK(input(run(given), "routing").value == "counts:8,8,0,0");
  rows({{8, 8, 0, 0}, {4, 4, 4, 4}});
  CHECK(input(run(given), "routing").value == "counts:8,8,0,0/4,4,4,4");
  const auto refused = [&](const std::vector<std::vector<std::int64_t>>& counts, const char* reason) {
    rows(counts);
    says(given, reason);
  };
  refused({{8, 8, 0}}, "counts.json:3:5: error: 3 counts for 4 experts");
  refused({{9, 7, 0, 0}}, "expert 0 has 9 tokens, and a micro-batch has 8");
  refused({{8, 7, 0, 0}}, "the counts sum to 15, and 8 tokens for 2 experts each are 16");
  refused({{8, 8, 0, 0}, {4, 4, 4, 4}, {4, 4, 4, 4}},
          "3 rows of counts for 2 mixtures; one row for each, or one for all");
  given.request.token_counts = {};
  set(given.request.routing, std::string("counts:4,4,4,4"), "--routing");
  CHECK(input(run(given), "routing").value == "counts:4,4,4,4");
  set(given.request.routing, std::string("counts:4,4,x,4"), "--routing");
  says(given, "needs whole numbers behind counts:");
}
