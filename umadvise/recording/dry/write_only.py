"""Arguments of which an op overwrites every byte before it reads any: what was there before need not be brought in.

Found by tools/find_write_only.py, which runs torch's own database of operators (torch 2.13) on two different fillings
of what each op writes, and then reviewed. Left out were operators that overwrote by the chance of their samples
(`index_copy_` of every row; comparisons in place, which came out alike for both fillings; `frac_`), those whose result
is as large as the data says (`nonzero`, `masked_select`), and factorizations, whose results are several. An operator
that is not listed counts as reading what it writes.
"""


def _names(text: str) -> list[str]:
    return text.split()


_SELF = _names(
    "_foreach_copy_ _foreach_zero_ bernoulli_.float cauchy_ copy_ exponential_ fill_.Scalar fill_.Tensor "
    "geometric_ log_normal_ normal_ uniform_ zero_ "
)
_OUT = _names(
    "_chunk_cat.out _fft_c2c.out _fft_c2r.out _fft_r2c.out abs.out acos.out acosh.out add.out addbmm.out "
    "addcdiv.out addcmul.out addmm.out addmv.out addr.out alias_copy.out all.all_out all.dims_out all.out "
    "amax.out amin.out angle.out any.all_out any.dims_out any.out arange.out arange.start_out argmax.out "
    "argmin.out as_strided_copy.out asin.out asinh.out atan.out atan2.out atanh.out avg_pool2d.out avg_pool3d.out "
    "baddbmm.out bernoulli.out bmm.out bucketize.Tensor_out cat.out ceil.out clamp.Tensor_out "
    "clamp_max.Tensor_out clamp_min.Tensor_out complex.out conj_physical.out copysign.Scalar_out copysign.out "
    "cos.out cosh.out cumprod.out cumsum.out deg2rad.out diag_embed.out diagonal_copy.out digamma.out div.out "
    "div.out_mode dot.out eq.Tensor_out erf.out erfc.out erfinv.out exp.out exp2.out expand_copy.out expm1.out "
    "eye.out floor.out floor_divide.out fmax.out fmin.out fmod.Tensor_out frac.out full.out gather.out "
    "ge.Tensor_out gelu.out gt.Tensor_out hardshrink.out heaviside.out hypot.out i0.out igamma.out igammac.out "
    "index_add.out index_copy.out index_reduce.out index_select.out isin.Tensor_Tensor_out isneginf.out "
    "isposinf.out ldexp.out le.Tensor_out lerp.Scalar_out lerp.Tensor_out lgamma.out linear.out "
    "linspace.Scalar_Tensor_out linspace.Tensor_Scalar_out linspace.Tensor_Tensor_out linspace.out log.out "
    "log10.out log1p.out log2.out log_softmax.int_out logaddexp.out logaddexp2.out logcumsumexp.out "
    "logical_and.out logical_not.out logical_or.out logical_xor.out logit.out logspace.out logsumexp.out "
    "lt.Tensor_out max.unary_out maximum.out mean.dtype_out mean.out min.unary_out minimum.out mm.out mul.out "
    "mv.out mvlgamma.out nan_to_num.out nansum.out narrow_copy.out ne.Tensor_out neg.out nextafter.out "
    "normal.Tensor_Tensor_out normal.Tensor_float_out normal.float_float_out ones.out permute_copy.out polar.out "
    "polygamma.out pow.Tensor_Scalar_out pow.Tensor_Tensor_out rad2deg.out reciprocal.out remainder.Tensor_out "
    "renorm.out round.decimals_out round.out rsqrt.out scatter.reduce_out scatter.src_out scatter_add.out "
    "scatter_reduce.two_out sgn.out sigmoid.out sign.out signbit.out sin.out sinc.out sinh.out slice_scatter.out "
    "softmax.int_out softplus.out softshrink.out special_airy_ai.out special_bessel_j0.out special_bessel_j1.out "
    "special_bessel_y0.out special_bessel_y1.out special_chebyshev_polynomial_t.out "
    "special_chebyshev_polynomial_u.out special_chebyshev_polynomial_v.out special_chebyshev_polynomial_w.out "
    "special_entr.out special_erfcx.out special_hermite_polynomial_h.out special_hermite_polynomial_he.out "
    "special_i0e.out special_i1.out special_i1e.out special_laguerre_polynomial_l.out "
    "special_legendre_polynomial_p.out special_log_ndtr.out special_modified_bessel_i0.out "
    "special_modified_bessel_i1.out special_modified_bessel_k0.out special_modified_bessel_k1.out "
    "special_ndtri.out special_scaled_modified_bessel_k0.out special_scaled_modified_bessel_k1.out "
    "special_shifted_chebyshev_polynomial_t.out special_shifted_chebyshev_polynomial_u.out "
    "special_shifted_chebyshev_polynomial_v.out special_shifted_chebyshev_polynomial_w.out "
    "special_spherical_bessel_j0.out special_xlog1py.out special_zeta.out sqrt.out squeeze_copy.dim_out "
    "squeeze_copy.out stack.out std.correction_out sub.out t_copy.out take.out tan.out tanh.out "
    "transpose_copy.int_out tril.out triu.out trunc.out unfold_copy.out unsqueeze_copy.out var.correction_out "
    "vdot.out view_copy.out where.self_out xlogy.OutTensor zeros.out "
)

WRITE_ONLY: dict[str, tuple[str, ...]] = {
    **{f"aten::{name}": ("self",) for name in _SELF},
    **{f"aten::{name}": ("out",) for name in _OUT},
}
"""By operator with overload: names of the arguments."""
