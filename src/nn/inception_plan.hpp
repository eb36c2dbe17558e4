// The steps of the FID Inception for one image. Convolutions that read the same pixels are one product; its result lies
// in front of the block's other branches, so that nothing is copied when they are put side by side.
#pragma once
#include <string>
#include <vector>

#include "ditrain/ops/pooling.hpp"

namespace ditrain::nn {

struct InceptionValue {
  int64_t side = 0, channels = 0;
  int first = 0, last = 0;  ///< steps that write it first and that read it last
  int64_t offset = 0;       ///< elements in the block, for one image; a batch multiplies it
  int64_t size() const { return side * side * channels; }
};

/// Channels [begin, begin + count) of a value.
struct InceptionView {
  int value = -1;
  int64_t begin = 0, count = 0;
  InceptionView part(int64_t first, int64_t n) const { return {value, begin + first, n}; }
};

struct InceptionConv {
  std::vector<std::string> names = {};  ///< their outputs side by side
  std::vector<int64_t> outputs = {};
  int64_t inputs = 0;
  ops::Conv2d conv = {};
};

struct InceptionStep {
  InceptionView x = {}, y = {};
  int conv = -1;  ///< index into convs; -1: pool
  ops::Pool pool = {};
  std::string module = {};  ///< complete after this step: what `shown` gives
  InceptionView shown = {};
};

struct InceptionPlan {
  std::vector<InceptionValue> values;
  std::vector<InceptionConv> convs;
  std::vector<InceptionStep> steps;
  InceptionView input, features, spatial;
  int64_t elements = 0;  ///< of the block, for one image
  double macs = 0;
};
InceptionPlan plan_inception();

}  // namespace ditrain::nn
