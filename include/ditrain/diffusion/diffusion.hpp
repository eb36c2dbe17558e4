// Gaussian diffusion: how clean data is noised, what a model of the noise is trained on, and how data is drawn from it.
//
// The difficulties are small numbers (1 - A_t near 0, likelihoods of 1e-12), so tables and arithmetic (but for the
// noising itself) are f64 around f32 arrays; and gradients that must not flow (the bound trains only the variance), so
// they are written by hand. Schedule holds the tables; Rules what the model's output means; training_loss and the steps
// work on ranges of samples, so that any caller can cut a batch over its workers; sample_loop runs any callable (x, t,
// y). Nothing here knows models, threads, random numbers or files.
//
//   const Schedule schedule = make_schedule(config.schedule, config.num_steps);
//   const Rules rules = make_rules(config, learn_sigma);
//   q_sample(schedule, x0, noise, t, x_t, shape.elements(), 0, n);
//   model(x_t, t, y, n, out);
//   training_loss(schedule, rules, shape, {x0, x_t, noise, t, out}, 1.0 / n, dout, terms, 0, n);
//   ...
//   sample_loop(respace(schedule, "250"), rules, sampler, shape, model, {.n = n, .z = z, .labels = y}, noise_of);
#pragma once
#include "ditrain/diffusion/config.hpp"
#include "ditrain/diffusion/loss.hpp"
#include "ditrain/diffusion/p_mean_variance.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/diffusion/schedule.hpp"
