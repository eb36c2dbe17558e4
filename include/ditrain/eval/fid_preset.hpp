// How public FID tools prepare an image for the Inception network. Resize and range change an FID more than anything
// else, so each preset follows one tool's arithmetic, operation by operation:
//
//   pytorch-fid   x/255, bilinear between pixel centres without antialiasing (torch), 2x-1
//   adm           bilinear as TensorFlow 1: no half-pixel shift, (x-128)/128; ADM's evaluator and torch-fidelity
//   clean         Pillow's bicubic of f32 images, antialiased, each channel alone, clipped to [0,255], (x-128)/128
//
// All of them resize, so images of one set may have different sizes.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/images/image.hpp"

namespace ditrain::eval {

enum class FidPreset { kPytorchFid, kAdm, kClean };
inline constexpr Word<FidPreset> kFidPresets[] = {
    {"pytorch-fid", FidPreset::kPytorchFid}, {"adm", FidPreset::kAdm}, {"clean", FidPreset::kClean}};
constexpr std::span<const Word<FidPreset>> words_of(FidPreset) { return kFidPresets; }

/// Side of the network's input, in pixels.
inline constexpr int64_t kFidInputSize = 299;

/// How the preset resizes and scales, for the protocol line.
const char* description_of(FidPreset preset);

/// Computes the network's input for one image.
/// Shapes:   image RGB of any size; out [3, 299, 299], written
/// Numerics: bit-identical to torch 2.13 on x86-64 (pytorch-fid), torch-fidelity's resize (adm), Pillow 13 (clean; up
///           to version 12 the last bit differs where the height shrinks by over twice the pixels of the width)
/// Memory:   allocates what the two passes of `clean` need
/// Threads:  any number at a time
/// Errors:   LogicFault for an image that is not RGB
void make_fid_input(const images::ImageU8& image, FidPreset preset, float* out);

/// The preset pytorch-fid for an image that is already in [0, 1]: the same resize, 2x-1.
/// Shapes:   planes [3, height, width]; out [3, 299, 299], written
void make_torch_fid_input(const std::vector<float>& planes, int64_t height, int64_t width, float* out);

}  // namespace ditrain::eval
