// For libraries that are preloaded into a program: the function that one of theirs stands in for.
#pragma once
#include <dlfcn.h>

// Static: dlsym looks behind the library that calls it, and two may be preloaded.
template <class Function>
static Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
