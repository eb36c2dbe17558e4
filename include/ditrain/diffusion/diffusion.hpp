// Generative processes between noise and data: how clean data is noised, what a model is trained on, and how data is
// sampled from it. There are two: ddpm (steps of a schedule, ddpm.hpp) and flow (straight line, flow.hpp).
//
// The difficulties are small numbers (1 - A_t near 0, likelihoods of 1e-12), so tables and arithmetic (but for the
// noising itself) are f64 around f32 arrays; and gradients that must not flow (the bound trains only the variance), so
// they are written by hand. Trainer, validation and sampling know only Process; its parts are rows of registry.hpp
// (prediction, loss, loss weight, schedule, sampler). training_loss works on ranges of samples, so that any caller can
// split a batch over its workers; sample_loop runs any callable (x, t, y). Nothing here knows models, threads or files.
//
//   const auto process = make_process(config, learn_sigma);
//   time[i] = process->draw_time(RandomKey(seed, Stream::kTimestep, step, i));
//   q_sample(*process, x0, noise, time, x_t, shape.elements(), 0, n);
//   model(x_t, process->model_time(time[i]), y, n, out);
//   training_loss(*process, shape, {x0, x_t, noise, time, out}, 1.0 / n, dout, terms, 0, n);
//   ...
//   sample_loop(*process, {.spacing = "50"}, shape, model, {.n = n, .z = z, .conditions = c}, noise_of);
//
// Bodies: schedule.cpp (schedules), predictions.cpp, losses.cpp (objectives and weights), ddpm.cpp and flow.cpp (the
// processes) with ddpm_samplers.cpp and flow_samplers.cpp. To add one: its body there, its row in registry.cpp.
#pragma once
#include "ditrain/diffusion/config.hpp"
#include "ditrain/diffusion/ddpm.hpp"
#include "ditrain/diffusion/flow.hpp"
#include "ditrain/diffusion/process.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/diffusion/schedule.hpp"
