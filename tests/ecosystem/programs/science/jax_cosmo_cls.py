"""jax-cosmo: the README's likelihood of angular spectra, with its Fisher matrix, distances, growth, matter power
spectra, sharded over multipoles.
"""

import jax
import jax.numpy as jnp
import jax_cosmo as jc
import numpy as np

from tests.ecosystem.report import report, shard

cosmo = jc.Planck15()
scales = shard(np.linspace(0.2, 1.0, 16, dtype=np.float32), "data")
report("distances", jax.jit(jc.background.radial_comoving_distance)(cosmo, scales))
report("growth", jax.jit(jc.background.growth_factor)(cosmo, scales))
wavenumbers = shard(np.logspace(-3, 0, 32, dtype=np.float32), "data")
report("linear power", jax.jit(jc.power.linear_matter_power)(cosmo, wavenumbers))
report("nonlinear power", jax.jit(jc.power.nonlinear_matter_power)(cosmo, wavenumbers))

bins = [jc.redshift.smail_nz(1.0, 2.0, 1.0), jc.redshift.smail_nz(1.0, 2.0, 0.5)]
probes = [jc.probes.WeakLensing(bins, sigma_e=0.26), jc.probes.NumberCounts(bins, jc.bias.constant_linear_bias(1.0))]
multipoles = shard(np.logspace(1, 3, 8, dtype=np.float32), "data")
spectra = jax.jit(lambda cosmo, ell: jc.angular_cl.angular_cl(cosmo, ell, probes))
report("angular spectra", 1e6 * spectra(cosmo, multipoles))
lensing = [jc.probes.WeakLensing(bins[:1], sigma_e=0.26)]
observed, _ = jc.angular_cl.gaussian_cl_covariance_and_mean(cosmo, multipoles, lensing, sparse=True)


@jax.jit
def mean_and_covariance(parameters, ell):
    cosmo = jc.Planck15(Omega_c=parameters[0], sigma8=parameters[1])
    return jc.angular_cl.gaussian_cl_covariance_and_mean(cosmo, ell, lensing, sparse=True)


parameters = jnp.array([0.27, 0.8])
mean, covariance = mean_and_covariance(parameters, multipoles)
report("likelihood", jc.likelihood.gaussian_log_likelihood(observed, mean, covariance, include_logdet=False))
derivatives, _ = jax.jacfwd(mean_and_covariance)(parameters, multipoles)
report("fisher", 1e-4 * derivatives.T @ jc.sparse.dot(jc.sparse.inv(covariance), derivatives))
