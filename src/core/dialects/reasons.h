// What rows of several dialects say alike: why a key moves no byte, and what a refused one asks for. Not for use
// outside the tables.
#pragma once

#include <string_view>

namespace dsplan::detail {

inline constexpr std::string_view kOnlyLogs = "it only logs";
inline constexpr std::string_view kFiles = "it concerns files that are written or read, not a step";
inline constexpr std::string_view kData = "it chooses, orders or loads data; every row is counted as full";
inline constexpr std::string_view kTokens = "it says how text becomes tokens";
inline constexpr std::string_view kEvaluation = "evaluation is no part of the predicted steps";
inline constexpr std::string_view kSchedule = "learning rates and the number of steps change no size";
inline constexpr std::string_view kRandom = "random numbers change no size";
inline constexpr std::string_view kCommunication = "it changes how ranks find and check each other, no buffer";
inline constexpr std::string_view kOtherDevices = "it is for devices that are no CUDA GPUs";

inline constexpr std::string_view kCompile = "torch.compile";
inline constexpr std::string_view kQuantized = "quantized weights";
inline constexpr std::string_view kPreference = "preference training";
inline constexpr std::string_view kDeterministic = "deterministic kernels, which change cuBLAS's workspaces";
inline constexpr std::string_view kAddedTokens = "added tokens, which resize the embeddings";

}  // namespace dsplan::detail
