#pragma once
// A visitor made of lambdas: std::visit(Overloaded{[](const Gemm&) {...}, [](const auto&) {...}},
// work).

namespace qplan {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace qplan
