// Where the storages of a PyTorch file lie: one entry of a zip each, or one after the other behind the pickles of the
// format before 1.6. Both give the document of the main pickle and the bytes of each storage.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "pickle.hpp"

namespace ditrain::weights {

class PytorchStorages {
 public:
  virtual ~PytorchStorages() = default;
  virtual const PickleDocument& document() const = 0;
  /// Whether numbers have the other byte order than this machine.
  virtual bool big_endian() const = 0;
  /// Bytes of a storage of the document, by what the file says. Errors: InputError if it is missing
  virtual uint64_t size(const PickledStorage& storage) const = 0;
  /// Its bytes, checked; valid until the next call. Errors: InputError if they are damaged
  virtual std::string_view bytes(const PickledStorage& storage) = 0;
};

/// Errors:   InputError, as PytorchFile
std::unique_ptr<PytorchStorages> open_pytorch_zip(const std::string& where, std::string_view file);
std::unique_ptr<PytorchStorages> open_pytorch_legacy(const std::string& where, std::string_view file);

}  // namespace ditrain::weights
