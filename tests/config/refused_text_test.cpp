// Text that is no config, and values that no key takes: with which words they are refused.
#include <catch2/catch.hpp>

#include "../../src/config/reference_names.hpp"
#include "config_support.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("unknown sections and keys name the line and the nearest") {
  CHECK(parse_error("train:\n  steps: 3\n  globl_batch: 8\n") ==
        "[config] a.yaml:3: unknown key train.globl_batch; did you mean train.global_batch?");
  CHECK(parse_error("\n\ntrian: {steps: 3}\n") == "[config] a.yaml:3: unknown section trian; did you mean train?");
  CHECK(parse_error("seed: 3\n") == "[config] a.yaml:1: unknown section seed; try `train: {seed: ...}`");
  CHECK(parse_error("train.seed: 3\n") == "[config] a.yaml:1: unknown section train.seed; try `train: {seed: ...}`");
  CHECK(parse_error("every_minutes: 3\n") ==
        "[config] a.yaml:1: unknown section every_minutes; try `checkpoint: {every_minutes: ...}`");
  CHECK(parse_error("ema:\n  zzzzzzzzzzzzzz: 3\n") ==
        "[config] a.yaml:2: unknown key ema.zzzzzzzzzzzzzz; expected decay, warmup or snapshots_every");
  CHECK(parse_error("train: {steps: 3}\n<<: {ema: {decay: 0}}\n").find("a.yaml:2: unknown section <<") !=
        std::string::npos);
}

TEST_CASE("wrong types and ranges name file, line, key and what is expected") {
  CHECK(parse_error("train:\n  steps: many\n") ==
        "[config] a.yaml:2: train.steps: bad value; got 'many', expected an integer from 1 to 1099511627776");
  CHECK(parse_error("train:\n\n  steps: 0\n").find("[config] a.yaml:3: train.steps: bad value; got '0'") == 0);
  CHECK(parse_error("train: {seed: -1}") ==
        "[config] a.yaml:1: train.seed: bad value; got '-1', expected an integer from 0 to 2^63 - 1");
  CHECK(parse_error("train: {seed: 9223372036854775807}") == "no error");
  for (const char* seed : {"9223372036854775808", "18446744073709551615", "1e3", "0x10"})
    CHECK(parse_error("train: {seed: " + std::string(seed) + "}") == "[config] a.yaml:1: train.seed: bad value; got '" +
                                                                         std::string(seed) +
                                                                         "', expected an integer from 0 to 2^63 - 1");
  CHECK(parse_error("train: {steps: 1.5}").find("got '1.5', expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: 12x}").find("got '12x', expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: 99999999999999999999}").find("expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: [1, 2]}").find("got [1, 2], expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: {a: 1}}").find("train.steps: bad value; got a map") != std::string::npos);
  CHECK(parse_error("train: {steps: }").find("train.steps: bad value; got nothing") != std::string::npos);
  CHECK(parse_error("train: {steps: []}").find("got a list of lists or an empty list") != std::string::npos);
  CHECK(parse_error("ema: {decay: 1}") ==
        "[config] a.yaml:1: ema.decay: bad value; got '1', expected a number from 0 to below 1");
  CHECK(parse_error("ema: {decay: nan}").find("got 'nan', expected a number") != std::string::npos);
  CHECK(parse_error("optimizer: {lr: inf}").find("got 'inf', expected a number") != std::string::npos);
  CHECK(parse_error("ema: {warmup: maybe}") ==
        "[config] a.yaml:1: ema.warmup: bad value; got 'maybe', expected true or false");
  CHECK(parse_error("optimizer: {betas: 0.9}").find("got '0.9', expected [beta1, beta2]") != std::string::npos);
  CHECK(parse_error("optimizer: {betas: [0.9, 1.0]}").find("optimizer.betas: bad value; got '1.0'") !=
        std::string::npos);
  CHECK(parse_error("model: {input_size: [8, 8, 8]}").find("expected N or [H, W]") != std::string::npos);
  for (const char* text : {"0", "none", "4097"})
    CHECK(parse_error(std::string("parallel: {threads: ") + text + "}") ==
          std::string("[config] a.yaml:1: parallel.threads: bad value; got '") + text +
              "', expected auto or an integer from 1 to 4096");
  CHECK(
      parse_error("data: {kind: folders}") ==
      "[config] a.yaml:1: data.kind: bad value; got 'folders', expected shapes, folder, latents or tiles; try folder");
  CHECK(parse_error("data: {path: \"a\\x07b\"}").find("control characters") != std::string::npos);
  CHECK(set_error("data.path=caf\xe9").find("expected text in UTF-8; try a symbolic link") != std::string::npos);
  CHECK_NOTHROW(config::parse_config("{}", "a.yaml", {"data.path=caf\xc3\xa9"}));
  CHECK(parse_error("data: {path: " + std::string(5000, 'x') + "}").find("expected at most 4096 bytes") !=
        std::string::npos);
  CHECK(parse_error("model: {name: DiT-M/2}").find("a.yaml:1: model.name: bad value; got 'DiT-M/2'") !=
        std::string::npos);
}

TEST_CASE("a word or number that a key does not take is refused with those that it does") {
  CHECK(set_error("parallel.strategy=tp") ==
        "[config] --set: parallel.strategy: bad value; got 'tp', expected cftp, dp or dp_tp; try dp");
  CHECK(set_error("data.on_bad_file=ignore").find("got 'ignore', expected error or skip") != std::string::npos);
  CHECK(set_error("diffusion.loss=mse_bv").find("try mse_vb") != std::string::npos);
  CHECK(set_error("train.precision=f64").find("train.precision: bad value; got 'f64'") != std::string::npos);
  CHECK(set_error("memory.fast_gib=lots").find("got 'lots', expected a number") != std::string::npos);
  CHECK(set_error("memory.automem=on") ==
        "[config] --set: memory.automem: bad value; got 'on', expected off, paper or planned; try off");
  CHECK(set_error("memory.pages=huge").find("expected auto, explicit, transparent or plain") != std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gb_s: 0}").find("memory.simulate_bulk.gb_s") != std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gbs: 1}").find("off or {gb_s: above 0, latency_us: 0 or more}") !=
        std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gb_s: 2, latency_us: 10}") == "no error");
  CHECK(set_error("memory.copy=nobody").find("expected auto, threads or workers") != std::string::npos);
  CHECK(set_error("memory.copy_cores=-2").find("memory.copy_cores") != std::string::npos);
  CHECK(set_error("memory.automem=planned") == "no error");
  CHECK(set_error("memory.automem=[off]").find("got [off], expected off, paper or planned") != std::string::npos);
  CHECK(set_error("dist.timeout_s=soon").find("got 'soon', expected a number") != std::string::npos);
  CHECK(config::parse_config("dist: {overlap: false, timeout_s: 0.0}", "a.yaml").dist.timeout_s == 0);
  CHECK(config::parse_config("dist: {verify_every: 10}", "a.yaml").dist.verify_every == 10);
}

TEST_CASE("sizes of memory that no machine has are refused") {
  for (const std::string key : {"fast_gib", "bulk_gib", "disk_gib"}) {
    CAPTURE(key);
    CHECK_THROWS_WITH(config::parse_config("memory: {" + key + ": 2e10}", "f.yaml"),
                      Catch::Contains("memory." + key) && Catch::Contains("from 0 to"));
    CHECK_NOTHROW(config::parse_config("memory: {" + key + ": 1048576}", "f.yaml"));
  }
}

TEST_CASE("keys given twice are refused") {
  CHECK(parse_error("train:\n  steps: 1\n  steps: 2\n") ==
        "[config] a.yaml:3: steps is there twice in section train; expected each key once");
  CHECK(parse_error("train:\nema:\ntrain:\n").find("[config] a.yaml:3: train is there twice in the file") == 0);
}

TEST_CASE("what is no config is refused") {
  CHECK(parse_error("").find("[config] a.yaml: holds no settings") == 0);
  CHECK(parse_error("# only a comment\n").find("holds no settings") != std::string::npos);
  CHECK(parse_error("- 1\n- 2\n").find("[config] a.yaml:1: not a map of sections") == 0);
  CHECK(parse_error("train: {steps: 1}\n---\nema: {decay: 0}\n").find("holds several documents") != std::string::npos);
  CHECK(parse_error("train: 7\n").find("[config] a.yaml:1: train: not a map of keys") == 0);
  CHECK(parse_error("train:\n  steps: [1\nema: 2\n").find("[config] a.yaml:3: not valid YAML: ") == 0);
  CHECK(parse_error("train:\n\tsteps: 1\n").find("[config] a.yaml:2: tabs are not allowed") == 0);
  CHECK(parse_error("? [1, 2]\n: 3\n").find("a key of the file is not a word") != std::string::npos);
  CHECK(parse_error("log: {every_steps: *nowhere}").find("[config] a.yaml:1: not valid YAML: ") == 0);
}

TEST_CASE("hostile text ends in a message") {
  CHECK(parse_error(std::string(2 << 20, '#')).find("too large for a config") != std::string::npos);
  CHECK(parse_error(std::string("train:\0 1", 9)).find("a zero byte") != std::string::npos);
  CHECK(parse_error(std::string(500000, '[')).find("[config] a.yaml") == 0);
  CHECK(parse_error(std::string(100000, '{')).find("[config] a.yaml") == 0);
  std::string bomb = "a: &a0 [x]\n";
  for (int i = 1; i < 40; ++i)
    bomb += "b: &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + ", *a" + std::to_string(i - 1) + "]\n";
  CHECK(parse_error(bomb).find("unknown section a") != std::string::npos);
  CHECK(parse_error("train: {steps: &a [*a]}").find("[config] a.yaml:1") == 0);
  CHECK(parse_error(", a\ntrain: {steps: 1}\n").find("several documents") != std::string::npos);
  CHECK(parse_error("\x80\xff\xfe: \x01\x02").find("[config] a.yaml") == 0);
}

TEST_CASE("tabs in YAML are named as such") {
  CHECK(parse_error("train:\n\tsteps: 5\n") == "[config] a.yaml:2: tabs are not allowed in YAML; use spaces");
  CHECK(parse_error("train:\n  steps: 5\n  \tseed: 3\n") ==
        "[config] a.yaml:3: tabs are not allowed in YAML; use spaces");
  CHECK(parse_error("train:\n  steps:\t5\n") == "no error");
  CHECK(parse_error("optimizer:\n  betas: [0.9,\n\t0.95]\n") == "no error");
  CHECK(parse_error("train:\n  seed 1\n  steps: 2\n") ==
        "[config] a.yaml:3: not valid YAML: illegal map value; try `key: value`, with a space behind the colon, here "
        "and in the line above");
  CHECK(parse_error("train: [\n").starts_with("[config] a.yaml:2: not valid YAML: "));
  CHECK(parse_error("train: [\n").find("colon") == std::string::npos);
}

TEST_CASE("bad --set") {
  const std::string shape = ", expected section.key=value; try --set ";
  CHECK(set_error("train.steps") == "[config] --set: no assignment; got 'train.steps'" + shape + "train.steps=...");
  CHECK(set_error("path=/a.b") == "[config] --set: the key has no section; got 'path=/a.b'" + shape + "data.path=...");
  CHECK(set_error("steps=1.5") == "[config] --set: the key has no section; got 'steps=1.5'" + shape +
                                      "train.steps=... or --set sample.steps=...");
  CHECK(set_error("") == "[config] --set: no assignment; got ''" + shape + "train.steps=100");
  CHECK(set_error("train.stepps=1") == "[config] --set: unknown key train.stepps; did you mean train.steps?");
  CHECK(set_error("train.batch_size=1") == "[config] --set: unknown key train.batch_size; try train.global_batch");
  CHECK(set_error("optimizer.learning_rate=1") ==
        "[config] --set: unknown key optimizer.learning_rate; try optimizer.lr");
  CHECK(set_error("train.epochs=1") ==
        "[config] --set: unknown key train.epochs; try train.steps (epochs x images / train.global_batch)");
  CHECK(
      parse_error("epochs: 3\n").starts_with("[config] a.yaml:1: unknown section epochs; try `train: {steps: ...}` ("));
  CHECK(set_error("optimizer.name=adam") == "[config] --set: unknown key optimizer.name; try optimizer.kind");
  CHECK(set_error("optimizer.warmup=5") ==
        "[config] --set: unknown key optimizer.warmup; did you mean optimizer.warmup_steps?");
  CHECK(set_error("train.ema_decay=1") == "[config] --set: unknown key train.ema_decay; try ema.decay");
  CHECK(set_error("train.grad_clip=1") == "[config] --set: unknown key train.grad_clip; try optimizer.clip_norm");
  CHECK(set_error("train.gradient_accumulation=2")
            .starts_with("[config] --set: unknown key train.gradient_accumulation; try train.micro_batch ("));
  for (const config::ReferenceWord& row : config::kReferenceWords) {
    const std::string key(row.key), assignment = key + "=";
    CHECK_THAT(set_error(assignment + std::string(row.word)), Catch::EndsWith("; try " + std::string(row.meant)));
    CHECK_NOTHROW(config::parse_config("train:", "a.yaml", {assignment + std::string(row.meant)}));
  }
  for (const config::ReferenceName& row : config::kReferenceNames) {
    INFO(row.name);
    const size_t dot = row.key.find('.');
    if (!row.key.empty())
      CHECK_NOTHROW(config::find_option(std::string(row.key.substr(0, dot)), std::string(row.key.substr(dot + 1)), ""));
  }
  CHECK(
      set_error("train.every_steps=1").starts_with("[config] --set: unknown key train.every_steps; try checkpoint.e"));
  CHECK(set_error("train.lr=1") == "[config] --set: unknown key train.lr; try optimizer.lr");
  CHECK(set_error("trein.steps=1") == "[config] --set: unknown section trein; did you mean train?");
  CHECK(set_error("train.steps=").find("[config] --set: train.steps: bad value; got ''") == 0);
  CHECK(set_error("model.input_size=[]").find("--set: model.input_size: bad value") != std::string::npos);
  CHECK(set_error("model.input_size=[8,]").find("--set: model.input_size: bad value") != std::string::npos);
}

TEST_CASE("sizes beside a model name have to be those of the name") {
  CHECK(parse_error("model:\n  name: DiT-S/2\n  hidden_size: 512\n") ==
        "[config] a.yaml:3: model.hidden_size contradicts model.name: DiT-S/2; got 512, expected 384; "
        "try model.name: custom");
  CHECK(parse_error("model: {name: DiT-S/2, hidden_size: 384}") == "no error");
  CHECK(set_error("model.patch_size=4").find("--set: model.patch_size contradicts model.name") != std::string::npos);
  const config::Config c =
      config::parse_config("model: {name: custom, hidden_size: 64, depth: 2, num_heads: 2, patch_size: 1}", "a");
  CHECK((c.model.hidden_size == 64 && c.model.depth == 2 && c.model.num_heads == 2 && c.model.patch_size == 1));
}
