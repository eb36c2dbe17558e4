// Makes this process, also that of root, a user without rights until the end of the scope.
#pragma once
#include <unistd.h>

#include <stdexcept>

class WithoutRights {
 public:
  WithoutRights() : before_(::geteuid()) {
    if (before_ == 0 && ::seteuid(65534) != 0) throw std::runtime_error("root cannot become another user");
  }
  ~WithoutRights() { (void)!::seteuid(before_); }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  uid_t before_;
};
