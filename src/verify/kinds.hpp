// The kinds of fixtures: each function runs one. Adding a kind: one file with its function, one row in verify.cpp.
#pragma once
#include "verification.hpp"

namespace ditrain::verify {

void verify_ops(Verification& v);             ///< operations, forward and backward
void verify_dit_tiny(Verification& v);        ///< a small model, forward and backward
void verify_dit_stats(Verification& v);       ///< a model at full size: loss, outputs, samples of the gradients
void verify_tread(Verification& v);           ///< a small model with token routing, forward and backward
void verify_blocks(Verification& v);          ///< one block, as it is and with normalised queries and keys
void verify_pos_embed(Verification& v);       ///< positional tables
void verify_dit_init_stats(Verification& v);  ///< distribution of initial weights
void verify_diffusion(Verification& v);       ///< schedules, losses, posteriors
void verify_train_traj(Verification& v);      ///< training runs of a small model
void verify_sample_traj(Verification& v);     ///< sampling runs of a small model
void verify_flow(Verification& v);            ///< flow matching, time shifts, v and min-SNR weights
void verify_samplers(Verification& v);        ///< samplers on an analytic denoiser
void verify_conv(Verification& v);            ///< convolutions, group normalisation
void verify_vae_small(Verification& v);       ///< a small autoencoder
void verify_vae_rect(Verification& v);        ///< one on images that are not square
void verify_vae_stats(Verification& v);       ///< that of Stable Diffusion at full size
void verify_fid_inception(Verification& v);   ///< the FID Inception: means of every module, features
void verify_fid_presets(Verification& v);     ///< resize of FID tools, then features, sFID's features and logits
void verify_fid_math(Verification& v);        ///< distances and metrics of small sets of features
void verify_fid_sets(Verification& v);        ///< the same of sets as large as those of images

}  // namespace ditrain::verify
