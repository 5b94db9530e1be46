// What comparisons of our declarations, in a namespace `ours`, with those of CUDA's headers have in common.
#pragma once

#define SAME_VALUE(name) static_assert(static_cast<long long>(ours::name) == static_cast<long long>(::name), #name);

// A real type with every part that we declare ourselves replaced by our declaration: by specializations.
template <class T>
struct Ours {
  using type = T;
};
template <class T>
struct Ours<const T> {
  using type = const typename Ours<T>::type;
};
template <class T>
struct Ours<T*> {
  using type = typename Ours<T>::type*;
};
template <class Result, class... Parameters>
struct Ours<Result(Parameters...)> {
  using type = typename Ours<Result>::type(typename Ours<Parameters>::type...);
};
