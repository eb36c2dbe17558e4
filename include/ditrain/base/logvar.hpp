// The range of log-variances of an autoencoder's posterior, for latents that are drawn now and those drawn from shards.
#pragma once
#include <algorithm>

namespace ditrain {

/// Limits a log-variance to [-30, 20], as the reference implementation does.
inline float clamp_logvar(float logvar) { return std::clamp(logvar, -30.0f, 20.0f); }

}  // namespace ditrain
