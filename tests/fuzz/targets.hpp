// What is fuzzed: readers of files that come from strangers. Any bytes have to give values or an InputError; everything
// else (a crash, a sanitizer's complaint, another exception, memory without bound) is a finding. The corpus of
// tests/fuzz/corpus runs in the tests as well (tests/images/corpus_test.cpp); scripts/fuzz.sh looks for more.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/npz_file.hpp"
#include "ditrain/weights/pytorch_file.hpp"
#include "weights/zip_bytes.hpp"

namespace ditrain::fuzz {

/// Zip, pickle, tensors as views of storages.
inline void read_pytorch(std::string_view bytes) {
  try {
    const weights::PytorchFile file("fuzz", bytes);
    for (const weights::PytorchTensor& tensor : file.tensors()) {
      size_t read = 0;
      file.visit(tensor, [&](std::string_view piece) { read += piece.size(); });
      if (read != tensor.bytes || file.find(tensor.name) == nullptr) __builtin_trap();
      (void)file.scalar(tensor.name);
    }
  } catch (const InputError&) {
  }
}

/// A pickle in a sound zip with one storage of 24 bytes: the checksums would keep a fuzzer out.
inline void read_pickle(std::string_view bytes) {
  const std::string storage(24, '\7');
  read_pytorch(test::make_zip({test::stored("f/data.pkl", std::string(bytes)), test::stored("f/data/0", storage)}));
}

/// Zip, the header of .npy, every order and type.
inline void read_npz(std::string_view bytes) {
  try {
    const weights::NpzFile file("fuzz", bytes);
    for (const std::string& name : file.names()) {
      try {
        const weights::NpyHeader header = file.header(name);
        if (file.to_f64(name).size() != header.num_elements()) __builtin_trap();
        weights::NpyStream stream(file, name);
        std::vector<std::byte> whole(header.bytes);
        stream.read(whole.data(), whole.size());
        stream.finish();
      } catch (const InputError&) {
      }
    }
  } catch (const InputError&) {
  }
}

/// JPEG, PNG and BMP.
inline void read_image(std::string_view bytes) {
  try {
    const images::ImageU8 image = images::decode_image("fuzz", bytes);
    if (static_cast<int64_t>(image.pixels.size()) != image.width * image.height * image.channels) __builtin_trap();
  } catch (const InputError&) {
  }
}

}  // namespace ditrain::fuzz
