// The operators of ditrain/kernels/operators.inc as data: all that a program needs to call any of them on arrays of its
// own. Benches and tests loop over them, so that a new row is measured and tested at once.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ditrain/kernels/operators.hpp"

namespace ditrain::kernels {

enum class Role { kIn, kOut, kUpdate, kCount, kRows, kColumns, kStride, kNumber, kAdamWStep, kNormalKl };
enum class Length { kEach, kPerRow, kPerColumn, kStrided };

/// A parameter of an operator. operators.hpp explains the words of roles and lengths.
struct Parameter {
  Role role;
  DType type = DType::kF32;  ///< this and the fields below are for arrays only
  Length length = Length::kEach;
  bool or_null = false;
  bool not_negative = false;

  bool is_array() const { return role == Role::kIn || role == Role::kOut || role == Role::kUpdate; }
};

/// The argument for one parameter: a pointer to an array or an object, or a number.
struct Value {
  void* p = nullptr;
  double number = 0;
};

struct Operator {
  std::string name, title;  ///< name of the function; title of its row in `ditbench ops`
  std::vector<Parameter> parameters;
  std::function<double(const std::vector<Value>&)> call;  ///< takes one value per parameter; returns the result or 0

  bool has(Role role) const;
};

/// The public functions: for kF32 all of them; for kBF16 those on activations, with T = BFloat16.
std::vector<Operator> operators(DType activation);

// Typical values for the objects that some operators take.
AdamWStep some_adamw_step();
NormalKl some_normal_kl(const float* out, const float* x_t, const float* x0, const float* v);
inline constexpr int kNormalKlArrays = 4;

namespace described {

// The words of operators.inc as distinct types, so that templates can read them.
using namespace roles;  // the lengths
template <class E, class Length = Each, class Values = Any>
struct In {};
template <class E, class Length = Each>
struct Out {};
template <class E, class Length = Each, class Values = Any>
struct Update {};
template <class Array>
struct OrNull {};
struct Count {};
struct Rows {};
struct Columns {};
struct Stride {};

template <class T>
struct Descriptions {
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) using name = result parameters;
#define DITRAIN_ACTIVATION DITRAIN_OPERATOR
#include "ditrain/kernels/operators.inc"
};

template <class E>
constexpr DType kTypeOf = sizeof(E) == 2 ? DType::kBF16 : DType::kF32;
template <class L>
constexpr Length kLengthOf = std::is_same_v<L, PerRow>      ? Length::kPerRow
                             : std::is_same_v<L, PerColumn> ? Length::kPerColumn
                             : std::is_same_v<L, Strided>   ? Length::kStrided
                                                            : Length::kEach;

template <class Word>
constexpr Parameter kParameter = {Role::kNumber};
template <class E, class L, class V>
constexpr Parameter kParameter<In<E, L, V>> = {Role::kIn, kTypeOf<E>, kLengthOf<L>, false,
                                               std::is_same_v<V, NotNegative>};
template <class E, class L>
constexpr Parameter kParameter<Out<E, L>> = {Role::kOut, kTypeOf<E>, kLengthOf<L>};
template <class E, class L, class V>
constexpr Parameter kParameter<Update<E, L, V>> = {Role::kUpdate, kTypeOf<E>, kLengthOf<L>, false,
                                                   std::is_same_v<V, NotNegative>};
template <class Array>
constexpr Parameter kParameter<OrNull<Array>> = {kParameter<Array>.role, kParameter<Array>.type,
                                                 kParameter<Array>.length, true, kParameter<Array>.not_negative};
template <>
inline constexpr Parameter kParameter<Count> = {Role::kCount};
template <>
inline constexpr Parameter kParameter<Rows> = {Role::kRows};
template <>
inline constexpr Parameter kParameter<Columns> = {Role::kColumns};
template <>
inline constexpr Parameter kParameter<Stride> = {Role::kStride};
template <>
inline constexpr Parameter kParameter<const AdamWStep&> = {Role::kAdamWStep};
template <>
inline constexpr Parameter kParameter<const NormalKl&> = {Role::kNormalKl};

template <class R, class... Words>
std::vector<Parameter> parameters_of(R (*)(Words...)) {
  return {kParameter<Words>...};
}

template <class P>
P argument(const Value& value) {
  if constexpr (std::is_pointer_v<P>)
    return static_cast<P>(value.p);
  else if constexpr (std::is_reference_v<P>)
    return *static_cast<std::remove_reference_t<P>*>(value.p);
  else
    return static_cast<P>(value.number);
}

template <class R, class... P, size_t... I>
double call(R (*function)(P...), const std::vector<Value>& values, std::index_sequence<I...>) {
  if constexpr (std::is_void_v<R>)
    return function(argument<P>(values[I])...), 0;
  else
    return static_cast<double>(function(argument<P>(values[I])...));
}

/// Makes an Operator of `function`. Description is its function type in the words of operators.inc.
template <class Description, class R, class... P>
Operator describe(const char* name, const char* title, R (*function)(P...)) {
  return {name, title, parameters_of(static_cast<Description*>(nullptr)), [function](const std::vector<Value>& values) {
            return call(function, values, std::index_sequence_for<P...>{});
          }};
}

}  // namespace described
}  // namespace ditrain::kernels
